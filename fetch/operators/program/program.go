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
