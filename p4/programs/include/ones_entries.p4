// Population count of a byte, negative, as const entries: SET(the count) for all 256 bytes. A file and not a macro,
// because p4c writes the whole source line of an entry into the JSON of bmv2, and one line of 256 entries makes it 20
// MB.
#define ONES_1(byte, ones) (byte): SET(8w0 - (ones));
#define ONES_2(byte, ones) ONES_1(byte, ones) ONES_1(byte + 1, ones + 1)
#define ONES_4(byte, ones) ONES_2(byte, ones) ONES_2(byte + 2, ones + 1)
#define ONES_8(byte, ones) ONES_4(byte, ones) ONES_4(byte + 4, ones + 1)
#define ONES_16(byte, ones) ONES_8(byte, ones) ONES_8(byte + 8, ones + 1)
ONES_16(0, 0)
ONES_16(16, 1)
ONES_16(32, 1)
ONES_16(48, 2)
ONES_16(64, 1)
ONES_16(80, 2)
ONES_16(96, 2)
ONES_16(112, 3)
ONES_16(128, 1)
ONES_16(144, 2)
ONES_16(160, 2)
ONES_16(176, 3)
ONES_16(192, 2)
ONES_16(208, 3)
ONES_16(224, 3)
ONES_16(240, 4)

#undef ONES_1
#undef ONES_2
#undef ONES_4
#undef ONES_8
#undef ONES_16
