// Package program says what a pipeline of operators is to the engine that runs it: a
// checked list of steps, a result whose form is known beforehand, a bound of what one
// sample costs, and a pure function from bytes to bytes.
//
// The kinds of samples have packages of their own, which compile lists of steps into
// programs. The package knows neither kinds nor the engine, does no I/O and starts no
// goroutine.
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

// Kind says what the bytes of a cell are.
type Kind uint8

const (
	// Encoded bytes are a file's: JPEG, FLAC and so on.
	Encoded Kind = iota + 1
	// Image is pixels, by Form.Axes.
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
	// Int16 is a waveform's: samples of -1 to 1 times 32,768.
	Int16
)

// Unknown is a dimension that each cell decides for itself.
const Unknown = -1

// Form is what is known of a cell's bytes before they are read. Elements are
// little-endian and lie in row-major order, without padding.
type Form struct {
	Kind Kind
	// Type is unset where Kind is Encoded, as are the fields below.
	Type DType
	// Dims are the sizes along Axes, in elements, or Unknown.
	Dims []int
	// Axes names the dimensions, one letter each: H, W and C (channels) of images, T (time) and F (frequency) of sound.
	Axes string
	// Rate is in samples a second; of a Spectrogram in those of its waveform.
	Rate int
	// MIME is the type of Encoded bytes where it is known: "image/jpeg".
	MIME string
}

// Step is an operator as a request names it, with its parameters, unchecked.
type Step struct {
	// Name is that of torchvision.transforms.v2 or torchaudio.transforms where they have one.
	Name string
	// Params is a JSON object or nil.
	Params json.RawMessage
}

// Cost bounds what one run takes.
type Cost struct {
	// Working is the most bytes that Run holds besides its input and its result.
	Working Amount
	// Result is the most bytes of the result.
	Result Amount
	// Steps is the most work that Run does. A step is about what a nanosecond of one processor does: one
	// multiplication and addition with its share of loads and stores.
	Steps Amount
}

// Limits bound what a single cell may become. They are checked against its header, before memory for its pixels or samples
// is allocated. A [Meter] holds the run to what was counted.
type Limits struct {
	// Pixels is the most that an encoded image may have, width times height.
	Pixels int64
	// Samples is the most of a waveform, over all its channels.
	Samples int64
	// Bytes is the most of Cost.Working and Cost.Result together.
	Bytes int64
	// Steps is the most of Cost.Steps.
	Steps int64
}

// Ceiling is what no cell goes beyond, whatever the limits are that Cost was asked with. Run
// holds a cell's header against it, so that whoever has not asked for the cost is safe, too.
var Ceiling = Limits{Pixels: 1 << 27, Samples: 1 << 28, Bytes: 1 << 31, Steps: 1 << 40}

// Program is a compiled pipeline of one column. It is immutable and safe for
// concurrent use.
type Program interface {
	// Result is what a cell becomes.
	Result() Form
	// Steps are those of the canonical list, with every parameter filled in: two
	// programs of equal steps, equal input and equal contract version give equal bytes.
	Steps() []Step
	// Deterministic is how many steps, from the first, draw nothing.
	Deterministic() int
	// Cost reads the header of a cell. It fails with ErrDamaged, ErrNotSupported or
	// ErrTooLarge.
	Cost(cell []byte, limits Limits) (Cost, error)
	// Run makes the result of a cell in memory that alloc gives, which is of exactly
	// the length asked for and need not be zeroed. It asks once. alloc gives nil where that is more than Cost has
	// said: Run fails with ErrTooLarge then. The cell is only read,
	// and neither it nor the result is held after Run returns. The result's dimensions
	// are those of Result with every Unknown filled in. Run fails with ErrDamaged where
	// the cell's bytes are at fault, and names the step, and with ErrTooLarge where it is beyond [Ceiling].
	// Where Run or Cost fails with ErrUnavailable, the cell is not at fault. Run looks at ctx at least once in
	// each 2^24 steps, and fails with its cause when it has ended.
	Run(ctx context.Context, cell []byte, by Draws, alloc func(n int) []byte) (Outcome, error)
}

// Draws says where a run's random numbers come from.
type Draws struct {
	Key draw.Key
	// Column is whose numbers are drawn: the cell's own, or one that it follows.
	Column string
}

// Source is the numbers of step i.
func (d Draws) Source(i int) draw.Source {
	return draw.New(d.Key, draw.Operator(d.Column, i))
}

// Outcome is what a run says besides its bytes.
type Outcome struct {
	// Dims has a size for each of the result's axes. It is nil where the result is Encoded.
	Dims []int
	// Drawn says what each random step drew: the box of a crop, whether it flipped. A
	// client can carry the steps out by them.
	Drawn []Drawn
	// Elsewhere is processor time that other processes have taken for the run.
	Elsewhere time.Duration
}

// Drawn is what one step drew, in the words of its operator.
type Drawn struct {
	// Step is its index in the list.
	Step int
	// Values are numbers by name. They are small, and whole where they count pixels.
	Values []Value
}

// Value is a named number.
type Value struct {
	Name   string
	Number float64
}

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

var (
	// ErrDamaged says that a cell's bytes are not what the first step takes.
	ErrDamaged = errors.New("damaged sample")
	// ErrNotSupported says that a cell is of a kind, or of a variant of one, that no decoder here reads. It may be whole.
	ErrNotSupported = errors.New("not supported")
	// ErrTooLarge says that a cell would become larger than the limits allow.
	ErrTooLarge = errors.New("sample too large")
	// ErrUnavailable says that the cell is not at fault: what makes something of it is not there just now.
	ErrUnavailable = errors.New("cannot be made just now")
)

// StepError says which step of a list is wrong, and how.
type StepError struct {
	// Step is its index; Name is its operator.
	Step int
	Name string
	// Param is the parameter at fault, or empty.
	Param string
	// Reason says what it got and what it takes.
	Reason string
}

// Error names the step, counted from 0, its operator, and the parameter if it is a parameter that is wrong.
func (e *StepError) Error() string {
	if e.Param == "" {
		return fmt.Sprintf("step %d (%s): %s", e.Step, e.Name, e.Reason)
	}
	return fmt.Sprintf("step %d (%s): %s: %s", e.Step, e.Name, e.Param, e.Reason)
}
