package metamorphic

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"bowstring/fetch"
	"bowstring/fetch/plan"
	"bowstring/schema"
)

// sample is a sample of some generation of imports: all there is about it
// follows from its numbers.
type sample struct {
	gen, i int
	val    bool // it is of split val, not of train
}

func (s sample) id() schema.ID {
	return schema.SampleID("metamorphic", fmt.Sprintf("%d-%d", s.gen, s.i))
}
func (s sample) label() int64 { return int64((s.i + s.gen) % 7) }
func (s sample) name() string { return fmt.Sprintf("g%d-%03d", s.gen, s.i) }

// image is the sample's blob, nil for some, and the same for some neighbours.
func (s sample) image(scale int) []byte {
	if s.i%13 == 12 {
		return nil
	}
	i := s.i
	if i%11 == 10 {
		i--
	}
	b := make([]byte, scale*(1+(i*i+s.gen*17)%400))
	var pattern [8]byte
	binary.LittleEndian.PutUint64(pattern[:], uint64(s.gen)<<32|uint64(i)*0x9e3779b1)
	for n := 0; n < len(b); n += 8 {
		copy(b[n:], pattern[:])
	}
	return b
}

// imported lists the samples of an import: three of four are of split train.
func imported(gen, rows int) (list []sample) {
	for i := range rows {
		list = append(list, sample{gen, i, i >= rows*3/4})
	}
	return list
}

// condition is an expression, and what it means.
type condition struct {
	text string
	true func(pos int64, s sample) bool
}

var conditions = []condition{
	{`label == 3`, func(_ int64, s sample) bool { return s.label() == 3 }},
	{`label in [0, 1, 2, 5]`, func(_ int64, s sample) bool { return slices.Contains([]int64{0, 1, 2, 5}, s.label()) }},
	{`position % 3 != 1`, func(pos int64, _ sample) bool { return pos%3 != 1 }},
	{`name startsWith "g1"`, func(_ int64, s sample) bool { return s.gen == 1 }},
	{`name matches "[02468]$"`, func(_ int64, s sample) bool { return s.i%2 == 0 }},
	{`label > 100`, func(int64, sample) bool { return false }},
}

// selected lists the positions that a request names in a snapshot's samples, in
// ascending order. listed are those of its selection, nil if it has none.
func selected(rows []sample, r schema.Request, listed []int64) (positions []int64) {
	at := slices.IndexFunc(conditions, func(c condition) bool { return c.text == r.Where })
	for pos, s := range rows {
		in := (r.Split == "" || (r.Split == "val") == s.val) && (at < 0 || conditions[at].true(int64(pos), s))
		if in && listed != nil {
			_, in = slices.BinarySearch(listed, int64(pos))
		}
		if in {
			positions = append(positions, int64(pos))
		}
	}
	return positions
}

// planFor is the plan of an epoch of a job that selects these positions.
func planFor(rows int, positions []int64, r schema.Request, epoch uint64) (*plan.Plan, error) {
	b := plan.NewBitmap(int64(rows))
	for _, p := range positions {
		b.Set(p)
	}
	cfg := plan.Config{Selection: b.Freeze(), Batch: r.Batch, World: int(r.WorldSize())}
	if r.Shuffle != nil {
		cfg.Shuffle, cfg.Seed, cfg.Epoch = true, r.Shuffle.Seed, epoch
	}
	var err error
	if cfg.Remainder, err = plan.ParseRemainder(r.Remainder); err != nil {
		return nil, err
	}
	return plan.New(cfg)
}

// slot is a share of a step: as many rows are served in its place, in batches of
// one or more.
type slot struct {
	round     int
	epoch     uint64
	step      int64
	positions []int64
}

// progress is what a stream has served, and has yet to serve.
type progress struct {
	strict bool
	reach  int64 // in steps of the stream; -1: any
	stride int64
	slots  []slot
	at     int // the slot being served
	row    int // rows served in it
	// homes are the slots of the rows of the present epoch that were not served, by
	// position; only where the order is not strict.
	homes map[int64][]int
}

// newProgress lists what a ticket is to serve, from its step on.
func newProgress(rows int, positions []int64, t schema.Ticket) (*progress, error) {
	mode, reach := t.OrderOf()
	p := &progress{strict: mode == schema.OrderStrict, reach: reach, stride: max(t.Stride, 1)}
	if mode == schema.OrderFree {
		p.reach = -1
	}
	for round := range int(max(t.Epochs, 1)) {
		epoch := uint64(0)
		if t.Shuffle != nil {
			epoch = t.Shuffle.Epoch + uint64(round)
		}
		pl, err := planFor(rows, positions, t.Request, epoch)
		if err != nil {
			return nil, err
		}
		first := t.Step
		if round > 0 {
			first %= p.stride
		}
		for step := first; step < pl.Steps(); step += p.stride {
			lo, hi := pl.Share(step, t.Rank)
			s := slot{round: round, epoch: epoch, step: step}
			for i := lo; i < hi; i++ {
				s.positions = append(s.positions, pl.Position(i))
			}
			if len(s.positions) > 0 {
				p.slots = append(p.slots, s)
			}
		}
	}
	p.settle()
	return p, nil
}

// settle goes on to the next slot where one is full, and to the next epoch.
func (p *progress) settle() {
	for p.at < len(p.slots) && p.row == len(p.slots[p.at].positions) {
		p.at, p.row = p.at+1, 0
		if p.at < len(p.slots) && p.slots[p.at].round != p.slots[p.at-1].round {
			p.homes = nil
		}
	}
	if p.strict || p.homes != nil {
		return
	}
	p.homes = map[int64][]int{}
	for i := p.at; i < len(p.slots) && p.slots[i].round == p.slots[p.at].round; i++ {
		for _, pos := range p.slots[i].positions {
			p.homes[pos] = append(p.homes[pos], i)
		}
	}
}

func (p *progress) clone() *progress {
	c := *p
	c.homes = nil
	if p.homes != nil {
		c.homes = make(map[int64][]int, len(p.homes))
		for pos, list := range p.homes {
			c.homes[pos] = slices.Clone(list)
		}
	}
	return &c
}

// left is how many rows are yet to be served.
func (p *progress) left() (n int) {
	for _, s := range p.slots[min(p.at, len(p.slots)):] {
		n += len(s.positions)
	}
	return n - p.row
}

// inRound lists the rows of the present epoch, in the plan's order.
func (p *progress) inRound() (list []int64) {
	for i := p.at; i < len(p.slots) && p.slots[i].round == p.slots[p.at].round; i++ {
		list = append(list, p.slots[i].positions...)
	}
	return list
}

// before takes a row as served before the stream began.
func (p *progress) before(pos int64) {
	if err := p.take(pos); err != nil {
		panic(err) // it was drawn from those to come
	}
	p.row++
	p.settle()
}

// take takes a row that has come out of those that are to come.
func (p *progress) take(pos int64) error {
	homes := p.homes[pos]
	if len(homes) == 0 {
		return fmt.Errorf("position %d came twice, or is not of this stream", pos)
	}
	near := slices.IndexFunc(homes, func(home int) bool {
		moved := (p.slots[p.at].step - p.slots[home].step) / p.stride
		return p.reach < 0 || max(moved, -moved) <= p.reach
	})
	if near < 0 {
		return fmt.Errorf("position %d of step %d came in the place of step %d, with order window:%d", pos,
			p.slots[homes[0]].step, p.slots[p.at].step, p.reach)
	}
	p.homes[pos] = slices.Delete(slices.Clone(homes), near, near+1)
	return nil
}

// serve checks that a batch may come next, and takes it as served.
func (p *progress) serve(b *fetch.Batch) error {
	if p.at == len(p.slots) {
		return fmt.Errorf("a batch of %d rows after all was served", len(b.Positions))
	}
	s := p.slots[p.at]
	end := p.row + len(b.Positions)
	if b.Step != s.step || b.Epoch != s.epoch || b.Row != int64(p.row) || end > len(s.positions) || end == p.row {
		return fmt.Errorf("a batch of epoch %d, step %d, rows %d to %d; want one of epoch %d, step %d, from row %d, "+
			"to %d at most",
			b.Epoch, b.Step, b.Row, b.Row+int64(len(b.Positions)), s.epoch, s.step, p.row, len(s.positions))
	}
	if last := end == len(s.positions); b.Last != last {
		return fmt.Errorf("a batch of step %d up to row %d of %d says last=%t", s.step, end, len(s.positions), b.Last)
	}
	var err error
	if p.strict {
		err = inOrder(b, s.positions[p.row:end])
	} else {
		err = p.takeAll(b)
	}
	p.row = end
	p.settle()
	return err
}

// inOrder checks that a batch has these rows, or substitutes that it reports.
func inOrder(b *fetch.Batch, want []int64) error {
	for i, pos := range b.Positions {
		stands := func(f fetch.Fault) bool {
			return f.Position == want[i] && f.Substitute != nil && *f.Substitute == pos
		}
		if pos != want[i] && !slices.ContainsFunc(b.Faults, stands) {
			return fmt.Errorf("step %d has %v, want %v", b.Step, b.Positions, want)
		}
	}
	return nil
}

// takeAll takes the rows of a batch, and those that substitutes stand for.
func (p *progress) takeAll(b *fetch.Batch) error {
	positions := slices.Clone(b.Positions)
	for _, f := range b.Faults {
		if f.Substitute == nil {
			continue
		}
		i := slices.Index(positions, *f.Substitute)
		if i < 0 {
			return fmt.Errorf("sample %d is said to stand for %d, and is not there", *f.Substitute, f.Position)
		}
		positions[i] = f.Position
	}
	for _, pos := range positions {
		if err := p.take(pos); err != nil {
			return err
		}
	}
	return nil
}

// plain is a text that fits a message.
func plain(err error) string {
	if err == nil {
		return "done"
	}
	return strings.ReplaceAll(err.Error(), "\n", "; ")
}
