package audio

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"bowstring/fetch/operators/audio/codec"
	"bowstring/fetch/operators/audio/dsp"
	"bowstring/fetch/operators/draw"
	"bowstring/fetch/operators/program"
)

// sound is a cell between two steps. Its data is room's, in the order of extent.native.
type sound struct {
	extent
	data []float32
	room *room
}

// room is memory that runs use again. Two buffers take turns.
type room struct {
	buffers  [2][]float32
	current  int
	planes   [][]float32
	frame    []float32
	powers   []float32
	spectrum dsp.SpectrumRoom
}

var rooms = sync.Pool{New: func() any { return new(room) }}

// keptRoom is the most memory that a pooled room may have: what an unusual cell took is given back.
const keptRoom = 64 << 20

func (r *room) free() {
	if 4*(cap(r.buffers[0])+cap(r.buffers[1])) <= keptRoom {
		rooms.Put(r)
	}
}

// spare is n numbers of the buffer that has no data. They are not zeroed.
func (s *sound) spare(n int) []float32 {
	b := &s.room.buffers[1-s.room.current]
	if cap(*b) < n {
		*b = make([]float32, n)
	}
	return (*b)[:n]
}

// take makes what was written to spare the data.
func (s *sound) take(data []float32) {
	s.room.current = 1 - s.room.current
	s.data = data
}

// row is the samples, or the frames of a feature, of row i of channels times features.
func (s *sound) row(i int) []float32 { return s.data[i*s.frames : (i+1)*s.frames : (i+1)*s.frames] }

func (s *sound) rows() int { return s.channels * max(s.features, 1) }

// begin gives what cells are before step 1, or step 0 where they are no files.
func (p *pipeline) begin(cell []byte) (codec.Info, extent, error) {
	if p.in.Kind != program.Encoded {
		e, err := p.between[0].filled(len(cell))
		return codec.Info{}, e, err
	}
	info, err := codec.Read(cell)
	if err != nil {
		return info, extent{}, p.at(0, err)
	}
	e, err := p.steps[0].(*decode).opened(info)
	return info, e, p.at(0, err)
}

// at says which step failed, and that the cell is at fault where it does not say otherwise.
func (p *pipeline) at(i int, err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, program.ErrDamaged) || errors.Is(err, program.ErrTooLarge) ||
		errors.Is(err, program.ErrUnavailable) {
		return fmt.Errorf("step %d (%s): %w", i, p.names[i], err)
	}
	return fmt.Errorf("step %d (%s): %w: %w", i, p.names[i], program.ErrDamaged, err)
}

// tabled is a step that makes tables for each rate that it meets.
type tabled interface{ tables(e extent) int64 }

// Cost implements program.Program.
func (p *pipeline) Cost(cell []byte, limits program.Limits) (program.Cost, error) {
	info, e, err := p.begin(cell)
	if err != nil {
		return program.Cost{}, err
	}
	return p.cost(info, e, limits)
}

// cost is Cost of a cell whose header was read.
func (p *pipeline) cost(info codec.Info, e extent, limits program.Limits) (program.Cost, error) {
	if crop := p.cropped(); crop != nil {
		e.frames = min(e.frames, crop.Length) // no more is decoded
	}
	return p.costFrom(info, e, p.first(), limits)
}

// costFrom is the cost of the steps from one on, which get a cell of that extent.
func (p *pipeline) costFrom(info codec.Info, e extent, from int, limits program.Limits) (program.Cost, error) {
	var err error
	cost := program.Cost{Working: program.Count(info.Working).Plus(program.Count(64 << 10))}
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
		if t, ok := p.steps[i].(tabled); ok {
			cost.Working = cost.Working.Plus(program.Count(t.tables(e)))
		}
		if e, err = p.steps[i].next(e); err != nil {
			return cost, p.at(i, err)
		}
	}
	cost.Working = cost.Working.Plus(most.Times(2))
	cost.Result = e.size().Times(int64(widths[e.dtype]))
	if takes := cost.Working.Plus(cost.Result); takes.Beyond(limits.Bytes) {
		return cost, p.at(max(len(p.steps)-1, 0), fmt.Errorf("%w: it takes %v bytes; at most %d are allowed",
			program.ErrTooLarge, takes, limits.Bytes))
	}
	return cost, nil
}

// first is the first step that is not Decode.
func (p *pipeline) first() int {
	if p.in.Kind == program.Encoded {
		return 1
	}
	return 0
}

// cropped is the crop that comes right after Decode, or nil.
func (p *pipeline) cropped() *randomCrop {
	if p.first() == 0 || len(p.steps) < 2 {
		return nil
	}
	crop, _ := p.steps[1].(*randomCrop)
	return crop
}

// Run implements program.Program.
func (p *pipeline) Run(ctx context.Context, cell []byte, by program.Draws,
	alloc func(n int) []byte) (out program.Outcome, err error) {
	var dims []int
	out, err = p.run(cell, by, func(s *sound) {
		write(s, alloc(int(s.size().Int64())*widths[s.dtype]))
		dims = s.dims()
	})
	out.Dims = dims
	return out, err
}

// run carries all steps out, and calls done with what became of the cell.
func (p *pipeline) run(cell []byte, by program.Draws, done func(s *sound)) (program.Outcome, error) {
	info, e, err := p.begin(cell)
	if err != nil {
		return program.Outcome{}, err
	}
	if _, err := p.cost(info, e, program.Ceiling); err != nil {
		return program.Outcome{}, err
	}
	r := rooms.Get().(*room)
	defer r.free()
	s := &sound{extent: e, room: r}
	var out program.Outcome
	i := p.first()
	if i == 1 {
		if i, err = p.open(s, cell, info, by, &out); err != nil {
			return out, p.at(0, err)
		}
	} else {
		s.take(s.spare(int(e.size().Int64())))
		read(s, cell)
	}
	if err := p.rest(s, i, by, &out); err != nil {
		return out, err
	}
	done(s)
	return out, nil
}

// rest carries out the steps from one on.
func (p *pipeline) rest(s *sound, i int, by program.Draws, out *program.Outcome) error {
	for ; i < len(p.steps); i++ {
		next, err := p.steps[i].next(s.extent)
		if err != nil {
			return p.at(i, err)
		}
		var from draw.Source
		_, draws := p.steps[i].(random)
		if draws {
			from = by.Source(i)
		}
		values := p.steps[i].run(s, &from)
		s.kind, s.axes, s.dtype, s.rate = next.kind, next.axes, next.dtype, next.rate
		if draws {
			out.Drawn = append(out.Drawn, program.Drawn{Step: i, Values: values})
		}
	}
	return nil
}

// open decodes, and of a file that is cropped next only what the crop takes. It gives the step that comes next.
func (p *pipeline) open(s *sound, cell []byte, info codec.Info, by program.Draws, out *program.Outcome) (int, error) {
	offset, next := p.steps[0].(*decode).FrameOffset, 1
	whole, start := s.frames, 0
	crop := p.cropped()
	if crop != nil {
		from := by.Source(1)
		start = crop.start(whole, &from)
		s.frames = min(whole, crop.Length)
	}
	s.take(s.spare(int(s.size().Int64())))
	s.room.planes = s.room.planes[:0]
	for c := range s.channels {
		s.room.planes = append(s.room.planes, s.row(c))
	}
	var err error
	if out.Elsewhere, err = codec.Decode(cell, info, offset+start, s.room.planes); err != nil {
		return next, err
	}
	if crop != nil {
		crop.fill(s)
		out.Drawn = append(out.Drawn, program.Drawn{Step: 1, Values: crop.drawn(start, whole)})
		next++
	}
	return next, nil
}
