// Header fields against each other: nothing that comes later, and no register, sees a packet that is not exactly 8
// passes long. A shorter one would overtake others in the recirculation, and with them the order of their additions.
#define FITS(type, count, payload_bytes) \
    (THC_VERSION, type, 0 &&& 0xfe, 4, 8, 0, count, 20 + 8 + 32 + payload_bytes, 8 + 32 + payload_bytes, \
     0, 0 &&& 0xf000, 0, 0, 0): fits();

// The root's packets to a leaf, with codes of 8 bits; `congested` (8) and `last` (16) may be set.
#define FROM_ROOT(type, contributions, count, payload_bytes) \
    (THC_VERSION, type, 0 &&& 0xe7, 8, 8, contributions, count, 20 + 8 + 32 + payload_bytes, 8 + 32 + payload_bytes, \
     0, 0 &&& 0xf000, 0, 0, 0): from_root();

control PacketCheck(in headers_t hdr, inout metadata_t meta) {
    action fits() {
        meta.shape = SHAPE_FITS;
    }

    action from_root() {
        meta.shape = SHAPE_FROM_ROOT;
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
            hdr.thc.chunk: ternary;  // its low 12 bits are compared between workers (metadata_t.order)
            hdr.thc.switch_pass: ternary;
            hdr.thc.switch_step: ternary;
            hdr.thc.switch_state: ternary;
        }
        actions = { fits; from_root; malformed; spoofed; }
        const entries = {
            FITS(THC_TYPE_CODES, THC_PASSES * 128, THC_PASSES * 64)
            FITS(THC_TYPE_NORM, THC_PASSES * 32, THC_PASSES * 128)
            FROM_ROOT(THC_TYPE_AGGREGATE, _, THC_PASSES * 128, THC_PASSES * 128)
            FROM_ROOT(THC_TYPE_MAX_NORM, _, THC_PASSES * 32, THC_PASSES * 128)
            FROM_ROOT(THC_TYPE_STRAGGLER, 0, 0, 0)
            FROM_ROOT(THC_TYPE_ERROR, 0, 0, 16)
            (_, _, _, _, _, _, _, _, _, _, _, 0, 0, 0): malformed();
        }
        const default_action = spoofed();
        SIZE_OF_CONST_ENTRIES(7)
    }

    apply {
        shape.apply();
    }
}
