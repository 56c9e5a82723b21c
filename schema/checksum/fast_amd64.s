#include "textflag.h"

// The bytes come from memory and not from the cache, so the gain is in prefetching them early. CPUs prefetch by
// themselves, but only within a page. So each stripe prefetches another one, at R10, that is needed a page later. It goes
// to the second level of the cache, because the first level can wait for fewer lines at once. A prefetch never faults.

DATA prime<>+0(SB)/8, $0x9E3779B1 // prime32x1
GLOBL prime<>(SB), RODATA|NOPTR, $8

// LOAD loads stripe i of the block at SI into Y2 and Y3, and prefetches that of the block at R10.
#define LOAD(i) \
	PREFETCHT1 (64*i)(R10);    \
	VMOVDQU (64*i)(SI), Y2;    \
	VMOVDQU (64*i+32)(SI), Y3

// KEEP puts it into the scratch at DX.
#define KEEP(i) \
	VMOVDQU Y2, (64+64*i)(DX); \
	VMOVDQU Y3, (96+64*i)(DX)

// ADD mixes Y2 and Y3 into the sums, Y0 and Y1, with stripe i's part of the secret at R9.
#define ADD(i) \
	VPXOR    (8*i)(R9), Y2, Y4;    \
	VPXOR    (8*i+32)(R9), Y3, Y5; \
	VPSHUFD  $0x31, Y4, Y6;        \
	VPSHUFD  $0x31, Y5, Y7;        \
	VPMULUDQ Y4, Y6, Y4;           \
	VPMULUDQ Y5, Y7, Y5;           \
	VPSHUFD  $0x4E, Y2, Y2;        \
	VPSHUFD  $0x4E, Y3, Y3;        \
	VPADDQ   Y0, Y2, Y0;           \
	VPADDQ   Y1, Y3, Y1;           \
	VPADDQ   Y0, Y4, Y0;           \
	VPADDQ   Y1, Y5, Y1

// SCRAMBLE scrambles four of the sums with the secret's part at R9 from at on. Y14 has prime32x1 in each lane.
#define SCRAMBLE(sums, at) \
	VPSRLQ   $47, sums, Y2;    \
	VPXOR    sums, Y2, Y2;     \
	VPXOR    (at)(R9), Y2, Y2; \
	VPSHUFD  $0xF5, Y2, Y3;    \
	VPMULUDQ Y14, Y2, Y2;      \
	VPMULUDQ Y14, Y3, Y3;      \
	VPSLLQ   $32, Y3, Y3;      \
	VPADDQ   Y2, Y3, sums

// WRITE writes line i at DI of what begins at R8, past the cache.
#define WRITE(i) \
	VMOVDQU  (64*i)(R8), Y2;       \
	VMOVDQU  (64*i+32)(R8), Y3;    \
	VMOVNTDQ Y2, (64*i)(DI);       \
	VMOVNTDQ Y3, (64*i+32)(DI)

#define MIX(i) LOAD(i); ADD(i)
#define MIXKEEP(i) LOAD(i); KEEP(i); ADD(i)

// func mix(s *sums, from, soon *byte, n int, secret *byte)
TEXT ·mix(SB), NOSPLIT, $0-40
	MOVQ         s+0(FP), AX
	MOVQ         from+8(FP), SI
	MOVQ         soon+16(FP), R10
	MOVQ         n+24(FP), CX
	MOVQ         secret+32(FP), R9
	VMOVDQU      (AX), Y0
	VMOVDQU      32(AX), Y1
	VPBROADCASTQ prime<>(SB), Y14

next:
	MIX(0)
	MIX(1)
	MIX(2)
	MIX(3)
	MIX(4)
	MIX(5)
	MIX(6)
	MIX(7)
	MIX(8)
	MIX(9)
	MIX(10)
	MIX(11)
	MIX(12)
	MIX(13)
	MIX(14)
	MIX(15)
	SCRAMBLE(Y0, 128)
	SCRAMBLE(Y1, 160)
	ADDQ $1024, SI
	ADDQ $1024, R10
	DECQ CX
	JNZ  next

	VMOVDQU Y0, (AX)
	VMOVDQU Y1, 32(AX)
	VZEROUPPER
	RET

// func mixCopy(s *sums, line, from, soon *byte, n int, scratch *[stripe + block]byte, skip int, secret *byte)
TEXT ·mixCopy(SB), NOSPLIT, $0-64
	MOVQ         s+0(FP), AX
	MOVQ         line+8(FP), DI
	MOVQ         from+16(FP), SI
	MOVQ         soon+24(FP), R10
	MOVQ         n+32(FP), CX
	MOVQ         scratch+40(FP), DX
	MOVQ         skip+48(FP), R8
	ADDQ         DX, R8
	MOVQ         secret+56(FP), R9
	VMOVDQU      (AX), Y0
	VMOVDQU      32(AX), Y1
	VPBROADCASTQ prime<>(SB), Y14

next:
	VMOVDQU 1024(DX), Y2
	VMOVDQU 1056(DX), Y3
	VMOVDQU Y2, (DX)
	VMOVDQU Y3, 32(DX)
	MIXKEEP(0)
	MIXKEEP(1)
	MIXKEEP(2)
	MIXKEEP(3)
	MIXKEEP(4)
	MIXKEEP(5)
	MIXKEEP(6)
	MIXKEEP(7)
	MIXKEEP(8)
	MIXKEEP(9)
	MIXKEEP(10)
	MIXKEEP(11)
	MIXKEEP(12)
	MIXKEEP(13)
	MIXKEEP(14)
	MIXKEEP(15)
	SCRAMBLE(Y0, 128)
	SCRAMBLE(Y1, 160)
	WRITE(0)
	WRITE(1)
	WRITE(2)
	WRITE(3)
	WRITE(4)
	WRITE(5)
	WRITE(6)
	WRITE(7)
	WRITE(8)
	WRITE(9)
	WRITE(10)
	WRITE(11)
	WRITE(12)
	WRITE(13)
	WRITE(14)
	WRITE(15)
	ADDQ $1024, SI
	ADDQ $1024, R10
	ADDQ $1024, DI
	DECQ CX
	JNZ  next

	// Non-temporal stores are not ordered with others. The fence makes them visible before anything that follows.
	SFENCE
	VMOVDQU Y0, (AX)
	VMOVDQU Y1, 32(AX)
	VZEROUPPER
	RET
