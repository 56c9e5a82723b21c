#include "textflag.h"

// func rowRGB(in, out *byte, first, values *int32, taps, size, n int)
//
// Each pixel of the result is the sum of taps pixels of in, of three bytes, from first
// on; values has the next pixel's weights size further on. A byte more than the pixels
// is read, and one is written.
TEXT ·rowRGB(SB), NOSPLIT, $0-56
	MOVQ in+0(FP), SI
	MOVQ out+8(FP), DI
	MOVQ first+16(FP), R8
	MOVQ values+24(FP), R10
	MOVQ taps+32(FP), R9
	MOVQ size+40(FP), R11
	MOVQ n+48(FP), R12
	SHLQ $2, R11
	MOVL $(1<<21), AX
	VMOVD AX, X7
	VPBROADCASTD X7, X7

pixel:
	MOVLQSX (R8), AX
	LEAQ (AX)(AX*2), AX
	ADDQ SI, AX
	MOVQ R9, CX
	MOVQ R10, BX
	VMOVDQA X7, X0

tap:
	VPMOVZXBD (AX), X1
	VPBROADCASTD (BX), X2
	VPMULLD X2, X1, X1
	VPADDD X1, X0, X0
	ADDQ $3, AX
	ADDQ $4, BX
	DECQ CX
	JNZ tap

	VPSRAD $22, X0, X0
	VPACKSSDW X0, X0, X0
	VPACKUSWB X0, X0, X0
	VMOVD X0, (DI)
	ADDQ $3, DI
	ADDQ $4, R8
	ADDQ R11, R10
	DECQ R12
	JNZ pixel
	VZEROUPPER
	RET

// func columns(in *byte, stride, width int, values *int32, taps int, out *byte)
//
// Bytes are done in lots of 32: up to 31 more than width are read of each row, and
// written.
TEXT ·columns(SB), NOSPLIT, $0-48
	MOVQ in+0(FP), SI
	MOVQ stride+8(FP), R8
	MOVQ width+16(FP), R9
	MOVQ values+24(FP), R10
	MOVQ taps+32(FP), R11
	MOVQ out+40(FP), DI
	MOVL $(1<<21), AX
	VMOVD AX, X7
	VPBROADCASTD X7, Y7
	VMOVDQU order<>(SB), Y8

lot:
	MOVQ SI, AX
	MOVQ R10, BX
	MOVQ R11, CX
	VMOVDQA Y7, Y0
	VMOVDQA Y7, Y1
	VMOVDQA Y7, Y2
	VMOVDQA Y7, Y3

row:
	VPBROADCASTD (BX), Y9
	VPMOVZXBD (AX), Y10
	VPMOVZXBD 8(AX), Y11
	VPMOVZXBD 16(AX), Y12
	VPMOVZXBD 24(AX), Y13
	VPMULLD Y9, Y10, Y10
	VPMULLD Y9, Y11, Y11
	VPMULLD Y9, Y12, Y12
	VPMULLD Y9, Y13, Y13
	VPADDD Y10, Y0, Y0
	VPADDD Y11, Y1, Y1
	VPADDD Y12, Y2, Y2
	VPADDD Y13, Y3, Y3
	ADDQ R8, AX
	ADDQ $4, BX
	DECQ CX
	JNZ row

	VPSRAD $22, Y0, Y0
	VPSRAD $22, Y1, Y1
	VPSRAD $22, Y2, Y2
	VPSRAD $22, Y3, Y3
	VPACKSSDW Y1, Y0, Y0
	VPACKSSDW Y3, Y2, Y2
	VPACKUSWB Y2, Y0, Y0
	VPERMD Y0, Y8, Y0
	VMOVDQU Y0, (DI)
	ADDQ $32, SI
	ADDQ $32, DI
	SUBQ $32, R9
	JG lot
	VZEROUPPER
	RET

DATA order<>+0(SB)/4, $0
DATA order<>+4(SB)/4, $4
DATA order<>+8(SB)/4, $1
DATA order<>+12(SB)/4, $5
DATA order<>+16(SB)/4, $2
DATA order<>+20(SB)/4, $6
DATA order<>+24(SB)/4, $3
DATA order<>+28(SB)/4, $7
GLOBL order<>(SB), RODATA|NOPTR, $32
