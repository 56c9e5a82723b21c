package where

import (
	"cmp"
	"math"
	"math/big"
	"math/bits"
)

// number is an integer or a float. Numbers are compared as what they are: no integer is rounded to a float for it.
// Exactly one of whole (if it is not nil), float and the integer of sign and size is the value.
type number struct {
	float    float64
	isFloat  bool
	negative bool     // the integer is -size
	size     uint64   // of an integer that is no more than 2^64-1 from zero
	whole    *big.Int // an integer beyond that
}

func intNumber(n int64) number {
	if n < 0 {
		return number{negative: true, size: -uint64(n)}
	}
	return number{size: uint64(n)}
}

func uintNumber(n uint64) number { return number{size: n} }

func floatNumber(f float64) number { return number{float: f, isFloat: true} }

// bigNumber is any integer.
func bigNumber(n *big.Int) number {
	if n.BitLen() > 64 {
		return number{whole: n}
	}
	return number{negative: n.Sign() < 0, size: new(big.Int).Abs(n).Uint64()}
}

// numberOf is the number that a value of an expression is; ok is false if it is none.
func numberOf(v any) (n number, ok bool) {
	switch v := v.(type) {
	case int:
		return intNumber(int64(v)), true
	case uint64:
		return uintNumber(v), true
	case float64:
		return floatNumber(v), true
	case wide:
		return bigNumber(v.Int), true
	}
	return n, false
}

// value is the integer as expressions have it: an int, a uint64 where it is beyond an int, or nil where it is beyond
// both.
func (n number) value() any {
	switch {
	case n.whole != nil || n.isFloat:
		return nil
	case !n.negative && n.size <= math.MaxInt64:
		return boxInt(int(n.size))
	case !n.negative:
		return n.size
	case n.size <= 1<<63:
		return int(-n.size)
	}
	return nil
}

// big is the integer.
func (n number) big() *big.Int {
	if n.whole != nil {
		return n.whole
	}
	b := new(big.Int).SetUint64(n.size)
	if n.negative {
		b.Neg(b)
	}
	return b
}

// bits is how many bits the size of an integer takes.
func (n number) bits() int {
	if n.whole != nil {
		return n.whole.BitLen()
	}
	return bits.Len64(n.size)
}

// nearest is the float next to the number.
func (n number) nearest() float64 {
	if n.isFloat {
		return n.float
	}
	f, _ := new(big.Float).SetInt(n.big()).Float64()
	return f
}

func (n number) isNaN() bool { return n.isFloat && n.float != n.float }

// compare is -1, 0 or 1 as n is less than, equal to or greater than b, none of which is a NaN.
func (n number) compare(b number) int {
	switch {
	case n.isFloat && b.isFloat:
		return cmp.Compare(n.float, b.float)
	case b.isFloat:
		return -b.compareFloat(n)
	case n.isFloat:
		return n.compareFloat(b)
	case n.whole != nil || b.whole != nil:
		return n.big().Cmp(b.big())
	case n.negative != b.negative && n.size|b.size != 0:
		if n.negative {
			return -1
		}
		return 1
	case n.negative:
		return cmp.Compare(b.size, n.size)
	}
	return cmp.Compare(n.size, b.size)
}

// compareFloat compares a float with an integer.
func (n number) compareFloat(b number) int {
	if math.IsInf(n.float, 0) {
		return cmp.Compare(n.float, 0)
	}
	const two64 = 1 << 64
	size := math.Abs(n.float)
	if b.whole != nil || size >= two64 {
		// No float of this size has a fraction.
		whole, _ := new(big.Float).SetFloat64(n.float).Int(nil)
		if c := whole.Cmp(b.big()); c != 0 || size >= two64 {
			return c
		}
	}
	floor := math.Floor(size)
	whole := number{negative: n.float < 0, size: uint64(floor)}
	if c := whole.compare(b); c != 0 || floor == size {
		return c
	}
	return cmp.Compare(n.float, 0) // the fraction leads away from zero
}
