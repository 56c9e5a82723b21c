package audio

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"

	"bowstring/fetch/operators/audio/codec"
	"bowstring/fetch/operators/audio/dsp"
	"bowstring/fetch/operators/draw"
	"bowstring/fetch/operators/program"
)

// sound is a cell between two steps. Its data belongs to room, and has the order of
// extent.native. It lives for one run and is used by its goroutine.
type sound struct {
	extent
	data  []float32
	room  *room
	meter *program.Meter
}

// chunk is how many numbers a step computes between two calls of the meter. It bounds how
// late a run notices that it was cancelled.
const chunk = 1 << 20

// spend spends n times that number of steps. It fails if the run is cancelled or has used
// up its allowance.
func (s *sound) spend(n int, each int64) error {
	return s.meter.Spend(program.Count(int64(n)).Times(each).Int64())
}

// inParts calls f for consecutive parts of x, and spends that number of steps for each
// number before. f may change the part in place.
func (s *sound) inParts(x []float32, each int64, f func(part []float32)) error {
	for len(x) > 0 {
		n := min(len(x), chunk)
		if err := s.spend(n, each); err != nil {
			return err
		}
		f(x[:n])
		x = x[n:]
	}
	return nil
}

// room is memory that runs reuse. Steps that cannot work in place read one buffer and write
// the other. A room belongs to one run at a time. held is 0 at the start of a run: buffers
// that an earlier run has allocated count again.
type room struct {
	buffers  [2][]float32
	current  int      // index of the buffer with the data
	held     [2]int64 // bytes of each buffer that the run's meter counts
	planes   [][]float32
	frame    []float32
	powers   []float32
	spectrum dsp.SpectrumRoom
}

// rooms has rooms of finished runs, of all programs.
var rooms = sync.Pool{New: func() any { return new(room) }}

// keptRoom is the most memory of a pooled room. More, which an unusual cell took, is
// freed.
const keptRoom = 64 << 20

// free returns the room to the pool, unless it is too large. The result of the run must
// have been written by then.
func (r *room) free() {
	numbers := cap(r.buffers[0]) + cap(r.buffers[1]) + cap(r.frame) + cap(r.powers)
	if r.held = [2]int64{}; 4*int64(numbers)+r.spectrum.Bytes() <= keptRoom {
		rooms.Put(r)
	}
}

// spare is n numbers of the buffer without data, not zeroed. It counts the memory before it
// allocates. The slice is valid until take, or the next call.
func (s *sound) spare(n int) ([]float32, error) {
	i := 1 - s.room.current
	if more := 4*int64(n) - s.room.held[i]; more > 0 {
		if err := s.meter.Hold(more); err != nil {
			return nil, err
		}
		s.room.held[i] += more
	}
	b := &s.room.buffers[i]
	if cap(*b) < n {
		*b = make([]float32, n)
	}
	return (*b)[:n], nil
}

// take makes the contents of spare the data. The caller sets frames, channels and features
// to those of the new data.
func (s *sound) take(data []float32) {
	s.room.current = 1 - s.room.current
	s.data = data
}

// row is row i of channels times features: the samples of a channel, or a feature over
// time. Its capacity ends with it, so that an append cannot reach the next row.
func (s *sound) row(i int) []float32 { return s.data[i*s.frames : (i+1)*s.frames : (i+1)*s.frames] }

// rows is the number of rows of the data.
func (s *sound) rows() int { return s.channels * max(s.features, 1) }

// begin parses a file's header, and returns the extent before step 1. It reads no samples.
func (p *pipeline) begin(cell []byte) (codec.Info, extent, error) {
	info, err := codec.Read(cell)
	if err != nil {
		return info, extent{}, p.at(0, err)
	}
	e, err := p.steps[0].(*decode).opened(info)
	return info, e, p.at(0, err)
}

// at adds the step to its error. The cell is at fault unless the error says otherwise.
func (p *pipeline) at(i int, err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, program.ErrDamaged) || errors.Is(err, program.ErrNotSupported) ||
		errors.Is(err, program.ErrTooLarge) || errors.Is(err, program.ErrUnavailable) {
		return fmt.Errorf("step %d (%s): %w", i, p.names[i], err)
	}
	return fmt.Errorf("step %d (%s): %w: %w", i, p.names[i], program.ErrDamaged, err)
}

// Cost implements program.Program. It reads the file's header only.
func (p *pipeline) Cost(cell []byte, limits program.Limits) (program.Cost, error) {
	info, e, err := p.begin(cell)
	if err != nil {
		return program.Cost{}, err
	}
	return p.cost(info, e, limits)
}

// cost is Cost for a cell whose header was parsed.
func (p *pipeline) cost(info codec.Info, e extent, limits program.Limits) (program.Cost, error) {
	if crop := p.cropped(); crop != nil {
		e.frames = min(e.frames, crop.Length) // only the crop is decoded
	}
	return p.costFrom(info, e, 1, limits)
}

// granted is the allowance of a run within the limits. If the place of a sample cannot be
// found by a search, the file is decoded from its beginning. That is rare and has its own
// bound, so it is no part of the cost.
func granted(cost program.Cost, info codec.Info) program.Cost {
	const rereading = 1 << 34
	whole := info.Work(0, info.Frames).Int64()
	cost.Steps = cost.Steps.Plus(program.Count(min(whole, rereading)))
	return cost
}

// costFrom is the cost of the steps from one on, for a cell of that extent. It walks over
// the steps with the extent that each one makes. Working memory counts twice the largest
// cell, because a step may read one buffer and write the other.
func (p *pipeline) costFrom(info codec.Info, e extent, from int, limits program.Limits) (program.Cost, error) {
	var err error
	cost := program.Cost{Working: program.Count(info.Working).Plus(program.Count(64 << 10)), Steps: program.Count(1 << 16)}
	if from > 0 && info.Format != "" {
		cost.Steps = cost.Steps.Plus(info.Work(p.steps[0].(*decode).FrameOffset, e.frames))
	}
	cost.Steps = cost.Steps.Plus(e.size().Times(layingOut))
	// most is the largest cell between two steps, in bytes.
	most := program.Amount{}
	for i := from; ; i++ {
		n := e.size()
		if e.kind == program.Audio && n.Beyond(limits.Samples) {
			return cost, p.at(max(i-1, 0), fmt.Errorf("%w: a waveform of %d channels of %d samples, %v in all; at "+
				"most %d are allowed",
				program.ErrTooLarge, e.channels, e.frames, n, limits.Samples))
		}
		most = most.Or(n.Times(4))
		if takes := most.Times(2).Plus(cost.Working); takes.Beyond(limits.Bytes) {
			return cost, p.at(max(i-1, 0), fmt.Errorf("%w: it takes %v bytes; at most %d are allowed",
				program.ErrTooLarge, takes, limits.Bytes))
		}
		if i >= len(p.steps) {
			break
		}
		cost.Working = cost.Working.Plus(p.steps[i].tables(e))
		was := e
		if e, err = p.steps[i].next(e); err != nil {
			return cost, p.at(i, err)
		}
		cost.Steps = cost.Steps.Plus(p.steps[i].work(was))
		if most := cmp.Or(limits.Steps, program.Ceiling.Steps); cost.Steps.Beyond(most) {
			return cost, p.at(i, fmt.Errorf("%w: it takes %v steps of work; at most %d are allowed", program.ErrTooLarge,
				cost.Steps, most))
		}
	}
	cost.Steps = cost.Steps.Plus(e.size().Times(layingOut))
	cost.Working = cost.Working.Plus(most.Times(2))
	cost.Result = e.size().Times(int64(widths[e.dtype]))
	if takes := cost.Working.Plus(cost.Result); takes.Beyond(limits.Bytes) {
		return cost, p.at(max(len(p.steps)-1, 0), fmt.Errorf("%w: it takes %v bytes; at most %d are allowed",
			program.ErrTooLarge, takes, limits.Bytes))
	}
	return cost, nil
}

// cropped is the crop directly after Decode, or nil. Then only the crop is decoded. It
// saves the most for long files: a crop of seconds from a recording of an hour.
func (p *pipeline) cropped() *randomCrop {
	if len(p.steps) < 2 {
		return nil
	}
	crop, _ := p.steps[1].(*randomCrop)
	return crop
}

// Run implements program.Program.
func (p *pipeline) Run(ctx context.Context, cell []byte, by program.Draws,
	alloc func(n int) []byte) (out program.Outcome, err error) {
	var dims []int
	out, err = p.run(ctx, cell, by, func(s *sound) error {
		dims = s.dims()
		return s.write(alloc, 0)
	})
	out.Dims = dims
	return out, err
}

// run applies all steps, and calls done with the result. The allowance is the cost of this
// cell. If a file's header is wrong about its samples, the run fails and does not work
// longer.
func (p *pipeline) run(ctx context.Context, cell []byte, by program.Draws,
	done func(s *sound) error) (program.Outcome, error) {
	info, e, err := p.begin(cell)
	if err != nil {
		return program.Outcome{}, err
	}
	cost, err := p.cost(info, e, program.Ceiling)
	if err != nil {
		return program.Outcome{}, err
	}
	r := rooms.Get().(*room)
	defer r.free()
	s := &sound{extent: e, room: r, meter: program.NewMeter(ctx, granted(cost, info))}
	var out program.Outcome
	i, err := p.open(ctx, s, cell, info, by, &out)
	if err != nil {
		return out, s.because(p.at(0, err))
	}
	if err := p.rest(s, i, by, &out); err != nil {
		return out, s.because(err)
	}
	return out, s.because(done(s))
}

// because is the reason of a failure: the end of the context, if it has ended, is not the
// step's fault. A cancelled run must not mark its cell as damaged.
func (s *sound) because(err error) error {
	if err == nil {
		return nil
	}
	if cause := s.meter.Check(); cause != nil && !errors.Is(cause, program.ErrTooLarge) {
		return cause
	}
	return err
}

// fill makes the numbers of a decoded prefix the data. Only the tail of a split list uses
// it.
func (s *sound) fill(cell []byte) error {
	data, err := s.spare(int(s.size().Int64()))
	if err != nil {
		return err
	}
	s.take(data)
	return read(s, cell)
}

// rest applies the steps from one on. Each random step has its own source of numbers, named
// by its index. A change of one step does not change the numbers of another.
func (p *pipeline) rest(s *sound, i int, by program.Draws, out *program.Outcome) error {
	for ; i < len(p.steps); i++ {
		next, err := p.steps[i].next(s.extent)
		if err != nil {
			return p.at(i, err)
		}
		var from draw.Source
		draws := p.steps[i].draws()
		if draws {
			from = by.Source(i)
		}
		values, err := p.steps[i].run(s, &from)
		if err != nil {
			return p.at(i, err)
		}
		s.kind, s.axes, s.dtype, s.rate = next.kind, next.axes, next.dtype, next.rate
		if draws {
			out.Drawn = append(out.Drawn, program.Drawn{Step: i, Values: values})
		}
	}
	return nil
}

// open decodes the file, or only the part that a following crop takes, and returns the next
// step. The crop is drawn before decoding, with the numbers of its own step.
func (p *pipeline) open(ctx context.Context, s *sound, cell []byte, info codec.Info, by program.Draws,
	out *program.Outcome) (int, error) {
	offset, next := p.steps[0].(*decode).FrameOffset, 1
	whole, start := s.frames, 0
	crop := p.cropped()
	if crop != nil {
		from := by.Source(1)
		start = crop.start(whole, &from)
		s.frames = min(whole, crop.Length)
	}
	data, err := s.spare(int(s.size().Int64()))
	if err != nil {
		return next, err
	}
	s.take(data)
	s.room.planes = s.room.planes[:0]
	for c := range s.channels {
		s.room.planes = append(s.room.planes, s.row(c))
	}
	out.Elsewhere, err = codec.Decode(ctx, s.meter, cell, info, offset+start, s.room.planes)
	if err != nil {
		return next, err
	}
	if crop != nil {
		if err := crop.fill(s); err != nil {
			return next, err
		}
		out.Drawn = append(out.Drawn, program.Drawn{Step: 1, Values: crop.drawn(start, whole)})
		next++
	}
	return next, nil
}

// Split implements program.Splitter. The data between the two parts is in single precision.
// The head is deterministic: its result can be cached for all epochs.
func (p *pipeline) Split() (head, tail program.Program, ok bool) {
	n := p.Deterministic()
	if n == len(p.steps) {
		return nil, nil, false
	}
	cut := &pipeline{between: p.between[:n+1], names: p.names[:n], steps: p.steps[:n], listed: p.listed[:n]}
	return &splitHead{cut}, &splitTail{p, n}, true
}

// splitHead is the steps before the first random one. Its result is data between two steps,
// with a header that says what it is.
type splitHead struct{ *pipeline }

// Result implements program.Program.
func (h *splitHead) Result() program.Form {
	return program.Form{Kind: program.Encoded, MIME: program.MIMEBetween}
}

// Cost implements program.Program.
func (h *splitHead) Cost(cell []byte, limits program.Limits) (program.Cost, error) {
	cost, err := h.pipeline.Cost(cell, limits)
	cost.Result = cost.Result.Plus(program.Count(program.BetweenHeader))
	return cost, err
}

// Run implements program.Program.
func (h *splitHead) Run(ctx context.Context, cell []byte, by program.Draws,
	alloc func(n int) []byte) (program.Outcome, error) {
	outcome, err := h.run(ctx, cell, by, func(s *sound) error {
		b := program.Between{Kind: s.kind, Type: program.Float32, Dims: s.dims(), Rate: s.rate}
		return s.write(func(n int) []byte {
			to := alloc(n)
			if len(to) == n {
				b.PutHeader(to)
			}
			return to
		}, program.BetweenHeader)
	})
	outcome.Dims = nil
	return outcome, err
}

// splitTail is the steps from the first random one on.
type splitTail struct {
	*pipeline
	from int
}

// parse checks the data between the parts against the extent that the compiled list
// expects. The data may come from a cache on disk, so it is not trusted.
func (t *splitTail) parse(cell []byte) (extent, []byte, error) {
	b, elements, err := program.ParseBetween(cell)
	if err != nil {
		return extent{}, nil, t.at(t.from-1, err)
	}
	e := extent{kind: b.Kind, channels: b.Dims[0], frames: b.Dims[len(b.Dims)-1], rate: b.Rate, dtype: b.Type}
	if b.Kind == program.Spectrogram {
		e.features = b.Dims[1]
	}
	e.axes = e.native()
	known := t.between[t.from]
	differ := func(known, is int) bool { return known != unknown && known != is }
	if e.kind != known.kind || differ(known.channels, e.channels) || differ(known.features, e.features) ||
		differ(known.frames, e.frames) ||
		known.rate != 0 && known.rate != e.rate || e.channels < 1 {
		return e, nil, t.at(t.from-1, fmt.Errorf("%w: the data between two steps has other sizes than "+
			"these steps make", program.ErrDamaged))
	}
	return e, elements, nil
}

// Cost implements program.Program.
func (t *splitTail) Cost(cell []byte, limits program.Limits) (program.Cost, error) {
	e, _, err := t.parse(cell)
	if err != nil {
		return program.Cost{}, err
	}
	return t.costFrom(codec.Info{}, e, t.from, limits)
}

// Run implements program.Program.
func (t *splitTail) Run(ctx context.Context, cell []byte, by program.Draws,
	alloc func(n int) []byte) (program.Outcome, error) {
	e, elements, err := t.parse(cell)
	if err != nil {
		return program.Outcome{}, err
	}
	cost, err := t.costFrom(codec.Info{}, e, t.from, program.Ceiling)
	if err != nil {
		return program.Outcome{}, err
	}
	r := rooms.Get().(*room)
	defer r.free()
	s := &sound{extent: e, room: r, meter: program.NewMeter(ctx, cost)}
	var out program.Outcome
	if err := s.fill(elements); err != nil {
		return out, s.because(t.at(t.from, err))
	}
	if err := t.rest(s, t.from, by, &out); err != nil {
		return out, s.because(err)
	}
	out.Dims = s.dims()
	return out, s.because(s.write(alloc, 0))
}
