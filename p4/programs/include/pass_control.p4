// Through which pipe a packet goes next.
control PassControl(in headers_t hdr, inout port_t output_port) {
    action recirculate_to(port_t port) {
        output_port = port;
    }

    // Key 0: the home pipe.
    table recirculation {
        key = {
            PASS_NUMBER(hdr.thc): exact @name("pass_number");
        }
        actions = { recirculate_to; @defaultonly NoAction; }
        const default_action = NoAction();
        size = 16;
    }

    apply {
        recirculation.apply();
    }
}
