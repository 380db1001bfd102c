// A pass's row of the sum registers. A pipe keeps the rows of its own passes, one after the other.
control PassRow(in headers_t hdr, inout metadata_t meta) {
    action set_row(bit<16> row_base) {
        meta.index = row_base + hdr.thc.switch_state;
        meta.step = hdr.thc.switch_step;
    }

    table row {
        key = {
            PASS_NUMBER(hdr.thc): exact @name("pass_number");
        }
        actions = { set_row; @defaultonly NoAction; }
        const default_action = NoAction();
        size = 16;
    }

    apply {
        row.apply();
    }
}
