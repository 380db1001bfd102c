// Header fields against each other: nothing that comes later, and no register, sees a packet that is not exactly
// 1 to 8 passes long.
#define FITS(type, count, payload_bytes, passes) \
    (THC_VERSION, type, 0 &&& 0xfe, 4, 8, 0, count, 20 + 8 + 32 + payload_bytes, 8 + 32 + payload_bytes, 0, 0 &&& 0xf000, \
     0, 0, 0): fits((9 - passes) * 0x11);
#define CODES_FIT(passes) FITS(THC_TYPE_CODES, 128 * passes, 64 * passes, passes)
#define NORMS_FIT(passes) FITS(THC_TYPE_NORM, 32 * passes, 128 * passes, passes)

control PacketCheck(in headers_t hdr, inout metadata_t meta) {
    // A packet uses the last of the 8 passes, so that all end in the home pipe. High digit: its first pass, low digit: the
    // present one.
    action fits(bit<8> first_pass) {
        meta.shape = SHAPE_FITS;
        meta.first_pass = first_pass;
    }

    action malformed() {
        meta.shape = SHAPE_MALFORMED;
    }

    action spoofed() {
        meta.shape = SHAPE_SPOOFED;
    }

    table shape {
        key = {
            hdr.thc.version: ternary;
            hdr.thc.message_type: ternary;
            hdr.thc.flags: ternary;
            hdr.thc.code_bits: ternary;
            hdr.thc.value_bits: ternary;
            hdr.thc.contributions: ternary;
            hdr.thc.payload_count: ternary;
            hdr.ipv4.total_length: ternary;
            hdr.udp.length: ternary;
            hdr.thc.slot[31:16]: ternary @name("slot_high");
            hdr.thc.chunk: ternary;  // 12 bits of it are compared between workers (metadata_t.order)
            hdr.thc.switch_pass: ternary;
            hdr.thc.switch_verdict: ternary;
            hdr.thc.switch_state: ternary;
        }
        actions = { fits; malformed; spoofed; }
        const entries = {
            CODES_FIT(1)
            CODES_FIT(2)
            CODES_FIT(3)
            CODES_FIT(4)
            CODES_FIT(5)
            CODES_FIT(6)
            CODES_FIT(7)
            CODES_FIT(8)
            NORMS_FIT(1)
            NORMS_FIT(2)
            NORMS_FIT(3)
            NORMS_FIT(4)
            NORMS_FIT(5)
            NORMS_FIT(6)
            NORMS_FIT(7)
            NORMS_FIT(8)
            (_, _, _, _, _, _, _, _, _, _, _, 0, 0, 0): malformed();
        }
        const default_action = spoofed();
        SIZE_OF_CONST_ENTRIES(17)
    }

    apply {
        shape.apply();
    }
}
