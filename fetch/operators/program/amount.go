package program

import (
	"math"
	"math/bits"
	"strconv"
)

// Amount counts bytes or steps of work. It is never negative and never wraps: a sum or a product that int64 cannot hold is
// [Most], which is beyond every limit. It has no arithmetic operators, so that no cost can be computed past this rule.
type Amount struct{ n int64 }

// Most is an amount that cannot be counted.
var Most = Amount{math.MaxInt64}

// Count is the amount n. A negative n is the result of a computation that has wrapped: it counts as Most.
func Count(n int64) Amount {
	if n < 0 {
		return Most
	}
	return Amount{n}
}

// Product is the amount of all factors multiplied. A negative factor makes Most of it.
func Product(factors ...int) Amount {
	a := Amount{1}
	for _, f := range factors {
		a = a.Times(int64(f))
	}
	return a
}

// Plus is the sum.
func (a Amount) Plus(b Amount) Amount {
	if a.n > math.MaxInt64-b.n {
		return Most
	}
	return Amount{a.n + b.n}
}

// Times is a taken n times.
func (a Amount) Times(n int64) Amount {
	if n < 0 {
		return Most
	}
	high, low := bits.Mul64(uint64(a.n), uint64(n))
	if high > 0 || low > math.MaxInt64 {
		return Most
	}
	return Amount{int64(low)}
}

// Or is the larger of two amounts.
func (a Amount) Or(b Amount) Amount { return Amount{max(a.n, b.n)} }

// Beyond reports whether the amount is larger than a limit.
func (a Amount) Beyond(limit int64) bool { return a.n > limit }

// Int64 is the number, math.MaxInt64 of Most.
func (a Amount) Int64() int64 { return a.n }

// String is the number, or says that there is none.
func (a Amount) String() string {
	if a == Most {
		return "more than can be counted"
	}
	return strconv.FormatInt(a.n, 10)
}

// MarshalJSON writes the number.
func (a Amount) MarshalJSON() ([]byte, error) { return strconv.AppendInt(nil, a.n, 10), nil }
