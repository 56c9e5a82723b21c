// Package program defines what a pipeline of operators is for the engine that runs it: a
// checked list of steps, a result whose form is known in advance, a bound on the cost of
// one sample, and a pure function from bytes to bytes.
//
// Each kind of samples has its own package, which compiles lists of steps into programs.
// This package knows neither kinds nor the engine, does no I/O and starts no goroutine.
package program

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"strconv"
	"time"

	"bowstring/fetch/operators/draw"
)

// Kind is the kind of a cell's bytes.
type Kind uint8

const (
	// Encoded bytes are those of a file: JPEG, FLAC and so on.
	Encoded Kind = iota + 1
	// Image is pixels along Form.Axes.
	Image
	// Audio is a waveform of Form.Rate samples a second.
	Audio
	// Spectrogram has frames over frequencies.
	Spectrogram
)

// DType is the type of a tensor's elements.
type DType uint8

// Types of elements. Float16 is IEEE 754's binary16.
const (
	Uint8 DType = iota + 1
	Uint16
	Float16
	Float32
	// Int16 is for waveforms: samples from -1 to 1, times 32,768.
	Int16
)

// Unknown is a dimension that differs between cells.
const Unknown = -1

// Form describes a cell's bytes before they are read. Elements are little-endian, in
// row-major order, without padding.
type Form struct {
	Kind Kind
	// Type and the fields below are not set if Kind is Encoded.
	Type DType
	// Dims are the sizes along Axes, in elements, or Unknown.
	Dims []int
	// Axes names the dimensions, one letter each: H, W and C (channels) of images, T (time) and F (frequency) of sound.
	Axes string
	// Rate is in samples a second; for a Spectrogram it is that of the waveform.
	Rate int
	// MIME is the media type of Encoded bytes, if it is known: "image/jpeg".
	MIME string
}

// Step is an operator of a request with its parameters, unchecked.
type Step struct {
	// Name is the name in torchvision.transforms.v2 or torchaudio.transforms, if there is
	// one.
	Name string
	// Params is a JSON object or nil.
	Params json.RawMessage
}

// Cost bounds the cost of one run.
type Cost struct {
	// Working is the maximum of bytes that Run holds besides its input and its result.
	Working Amount
	// Result is the maximum size of the result in bytes.
	Result Amount
	// Steps is the maximum of Run's work. A step is about a nanosecond of CPU time: one
	// multiplication and addition with its share of loads and stores.
	Steps Amount
}

// Limits bound a single cell. They are checked against its header, before memory for its
// pixels or samples is allocated. A [Meter] then limits the run to the computed cost.
type Limits struct {
	// Pixels bounds an encoded image: width times height.
	Pixels int64
	// Samples bounds a waveform, over all its channels.
	Samples int64
	// Bytes bounds Cost.Working and Cost.Result together.
	Bytes int64
	// Steps bounds Cost.Steps.
	Steps int64
}

// Ceiling bounds every cell, whatever limits Cost was called with. Run checks a cell's
// header against it, so a caller that did not call Cost is safe, too.
var Ceiling = Limits{Pixels: 1 << 27, Samples: 1 << 28, Bytes: 1 << 31, Steps: 1 << 40}

// Program is a compiled pipeline of one column. It is immutable and safe for
// concurrent use.
type Program interface {
	// Result is the form of results.
	Result() Form
	// Steps are the canonical list, with every parameter filled in: two programs with
	// equal steps, equal input and equal contract give equal bytes.
	Steps() []Step
	// Deterministic is how many steps, from the first, use no random numbers.
	Deterministic() int
	// Cost reads the header of a cell. It fails with ErrDamaged, ErrNotSupported or
	// ErrTooLarge.
	Cost(cell []byte, limits Limits) (Cost, error)
	// Run makes the result of a cell in memory from alloc. It calls alloc once, for
	// exactly the length of the result; the memory need not be zeroed. alloc returns nil
	// if the length exceeds the result of Cost; Run then fails with ErrTooLarge. Run only
	// reads the cell, and keeps neither cell nor result after it has returned. The
	// result's dimensions are those of Result with every Unknown filled in.
	//
	// Run fails with ErrDamaged, naming the step, if the cell's bytes are at fault, and
	// with ErrTooLarge if the cell is beyond [Ceiling]. If Run or Cost fails with
	// ErrUnavailable, the cell is not at fault. Run checks ctx at least once in 2^24
	// steps, and fails with its cause when it has ended.
	Run(ctx context.Context, cell []byte, by Draws, alloc func(n int) []byte) (Outcome, error)
}

// Draws is the source of a run's random numbers.
type Draws struct {
	Key draw.Key
	// Column is the column whose numbers are used: the cell's own, or the one that it
	// follows.
	Column string
}

// Source is the random numbers of step i.
func (d Draws) Source(i int) draw.Source {
	return draw.New(d.Key, draw.Operator(d.Column, i))
}

// Outcome describes the result of a run.
type Outcome struct {
	// Dims has a size for each of the result's axes. It is nil if the result is Encoded.
	Dims []int
	// Drawn is what each random step chose: the box of a crop, whether it flipped. A
	// client can repeat the steps with it.
	Drawn []Drawn
	// Elsewhere is the CPU time of other processes for the run.
	Elsewhere time.Duration
}

// Drawn is what one step chose, in the terms of its operator.
type Drawn struct {
	// Step is its index in the list.
	Step int
	// Values are small numbers by name. Counts of pixels are whole.
	Values []Value
}

// Value is a named number.
type Value struct {
	Name   string
	Number float64
}

// Amount counts bytes or steps of work. It is never negative and never wraps: a sum or
// product beyond int64 is [Most], which exceeds every limit. It is a struct without
// arithmetic operators, so that no cost can be computed without this rule.
type Amount struct{ n int64 }

// Most is an amount too large to be counted.
var Most = Amount{math.MaxInt64}

// Count is the amount n. A negative n comes from a computation that has wrapped, and
// counts as Most.
func Count(n int64) Amount {
	if n < 0 {
		return Most
	}
	return Amount{n}
}

// Product is the product of all factors. A negative factor makes it Most.
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

// Times is a times n.
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

// Int64 is the number, math.MaxInt64 for Most.
func (a Amount) Int64() int64 { return a.n }

// String is the number, or says that it cannot be counted.
func (a Amount) String() string {
	if a == Most {
		return "more than can be counted"
	}
	return strconv.FormatInt(a.n, 10)
}

// MarshalJSON writes the number.
func (a Amount) MarshalJSON() ([]byte, error) { return strconv.AppendInt(nil, a.n, 10), nil }

var (
	// ErrDamaged means that a cell's bytes are not what the first step needs.
	ErrDamaged = errors.New("damaged sample")
	// ErrNotSupported means that a cell is of a kind or variant that no decoder here
	// reads. It may be intact.
	ErrNotSupported = errors.New("not supported")
	// ErrTooLarge means that a cell would exceed the limits.
	ErrTooLarge = errors.New("sample too large")
	// ErrUnavailable means that the program that makes the cell is unavailable at the
	// moment. The cell is not at fault.
	ErrUnavailable = errors.New("cannot be made just now")
)

// StepError says which step of a list is wrong, and why.
type StepError struct {
	// Step is its index; Name is its operator.
	Step int
	Name string
	// Param is the parameter at fault, or empty.
	Param string
	// Reason says what it has and what it should have.
	Reason string
}

// Error names the step, counted from 0, its operator, and the parameter if one is wrong.
func (e *StepError) Error() string {
	if e.Param == "" {
		return fmt.Sprintf("step %d (%s): %s", e.Step, e.Name, e.Reason)
	}
	return fmt.Sprintf("step %d (%s): %s: %s", e.Step, e.Name, e.Param, e.Reason)
}
