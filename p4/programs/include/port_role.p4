// A packet's rights depend on its port.
control PortRole(inout metadata_t meta, in port_t ingress_port) {
    action front() {
        meta.role = ROLE_FRONT;
    }

    // The home pipe keeps the state of all slots; `port` is its recirculation port.
    action front_of_other_pipe(port_t port) {
        meta.role = ROLE_FRONT_OF_OTHER_PIPE;
        meta.home_port = port;
    }

    action recirculation() {
        meta.role = ROLE_RECIRCULATION;
    }

    action cpu() {
        meta.role = ROLE_CPU;
    }

    table port_role {
        key = {
            ingress_port: exact @name("ingress_port");
        }
        actions = { front; front_of_other_pipe; recirculation; cpu; }
        const default_action = front();
        size = THC_PORT_ENTRIES;
    }

    apply {
        port_role.apply();
    }
}
