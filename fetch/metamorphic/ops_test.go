package metamorphic

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"time"

	"bowstring/schema"
)

const (
	// slowRead is what a slow read takes more.
	slowRead = 3 * time.Second
	// readTimeout is beyond all that a read takes which is slow alone.
	readTimeout = 10 * time.Second
)

// op is an operation: a JSON line. ID names what it makes, On what it acts upon;
// one whose On is not there does nothing, so that any part of a list can be run.
type op struct {
	Do    string `json:"do"`
	ID    int    `json:"id,omitempty"`
	On    int    `json:"on,omitempty"`
	After int64  `json:"after,omitempty"` // milliseconds of virtual time that pass before it

	// How its caller waits: until the call is over before anything else is done, or for
	// this many milliseconds, or until its context was checked this often.
	Inline   bool  `json:"inline,omitempty"`
	Deadline int64 `json:"deadline,omitempty"`
	Checks   int64 `json:"looks,omitempty"`

	Dataset  string          `json:"dataset,omitempty"`
	Number   int64           `json:"number,omitempty"`
	Mode     string          `json:"mode,omitempty"` // of an import
	Rows     int             `json:"rows,omitempty"`
	Gen      int             `json:"gen,omitempty"`     // imports of one generation have the same samples
	Request  *schema.Request `json:"request,omitempty"` // its selection is that of the save On
	Rank     int             `json:"rank,omitempty"`
	World    int64           `json:"world,omitempty"`
	Step     int64           `json:"step,omitempty"`
	Stride   int64           `json:"stride,omitempty"`
	Epochs   int64           `json:"epochs,omitempty"`
	Served   int             `json:"served,omitempty"` // rows of which some were served before
	N        int             `json:"n,omitempty"`      // batches to read; the batch to resume after
	Pause    int64           `json:"pause,omitempty"`  // milliseconds between batches
	Hold     bool            `json:"hold,omitempty"`   // batches are released a while later
	Draw     uint64          `json:"draw,omitempty"`   // seed of what else is drawn: positions, bits
	Kind     string          `json:"kind,omitempty"`   // of a fault
	Share    int             `json:"share,omitempty"`  // of reads that it meets, in percent
	Window   int64           `json:"window,omitempty"` // of the engine: options
	Reads    int             `json:"reads,omitempty"`
	Snapshot int             `json:"snapshots,omitempty"`
	Spill    bool            `json:"spill,omitempty"`
}

func (o op) String() string {
	b, err := json.Marshal(o)
	if err != nil {
		panic(err)
	}
	return string(b)
}

func format(ops []op) string {
	var b bytes.Buffer
	for _, o := range ops {
		fmt.Fprintln(&b, o)
	}
	return b.String()
}

func parse(text []byte) (ops []op, err error) {
	lines := bufio.NewScanner(bytes.NewReader(text))
	for lines.Scan() {
		var o op
		if len(bytes.TrimSpace(lines.Bytes())) == 0 {
			continue
		}
		if err := json.Unmarshal(lines.Bytes(), &o); err != nil {
			return nil, fmt.Errorf("%s: %w", lines.Text(), err)
		}
		ops = append(ops, o)
	}
	return ops, lines.Err()
}

// generator draws operations.
type generator struct {
	*rand.Rand
	ops                  []op
	jobs, streams, saves []int
	world                map[int]int64 // of jobs
	strict               map[int]bool  // jobs
}

// windows are what all streams may hold, in bytes. The least has room for some
// blobs of each: it is a bound that holds, and streams that are not read keep what
// they have.
var windows = []int64{100 * maxBlob, 300 * maxBlob, 1 << 20}

// generate returns the operations of a seed.
func generate(seed uint64) []op {
	g := &generator{Rand: rand.New(rand.NewPCG(seed, 11)), world: map[int]int64{}, strict: map[int]bool{}}
	first := op{Do: "engine", Window: pick(g, windows), Reads: pick(g, []int{1, 4, 64, 0}),
		Snapshot: 1 + g.IntN(3), Spill: g.IntN(40) == 0, Draw: g.Uint64()}
	g.ops = append(g.ops, first)
	g.add(op{Do: "import", Dataset: "a", Mode: "replace", Rows: 20 + g.IntN(180), Gen: 1, Inline: true})
	if g.IntN(3) == 0 {
		g.add(op{Do: "import", Dataset: "b", Mode: "create", Rows: 1 + g.IntN(50), Gen: 2, Inline: true})
	}
	g.open()
	g.stream()
	for range 8 + g.IntN(24) {
		g.next()
	}
	return g.ops
}

func pick[T any](g *generator, of []T) T { return of[g.IntN(len(of))] }

func (g *generator) chance(n int) bool { return g.IntN(n) == 0 }

// add appends an operation, and returns what it makes.
func (g *generator) add(o op) int {
	o.ID = len(g.ops)
	if g.chance(2) {
		o.After = pick(g, []int64{1, 3, 10, 30, 100, 3000})
	}
	g.ops = append(g.ops, o)
	return o.ID
}

// call has an operation be a call whose caller may not wait for its end.
func (g *generator) call(o op) op {
	o.Inline = g.chance(2)
	switch g.IntN(8) {
	case 0:
		o.Deadline = pick(g, []int64{1, 2, 5, 50})
	case 1, 2:
		o.Checks = 1 + g.Int64N(4)
	}
	return o
}

// next draws one operation, or a few that belong together.
func (g *generator) next() {
	dataset := pick(g, []string{"a", "a", "b"})
	switch g.IntN(30) {
	case 0, 1:
		g.add(g.call(op{Do: "import", Dataset: dataset, Mode: pick(g, []string{"create", "append", "replace"}),
			Rows: g.IntN(120), Gen: 1 + g.IntN(4)}))
	case 2, 3, 4:
		g.open()
	case 5, 6, 7:
		g.stream()
	case 8, 9, 10, 11, 12:
		g.read()
	case 13, 14, 15, 16:
		g.resume()
	case 17:
		if len(g.jobs) > 0 {
			id := g.add(g.call(op{Do: "take", On: pick(g, g.jobs), N: g.IntN(60), Draw: g.Uint64()}))
			g.streams = append(g.streams, id)
		}
	case 18:
		if len(g.ops) > 1 {
			g.add(op{Do: "cancel", On: 1 + g.IntN(len(g.ops)-1)})
		}
	case 19:
		if len(g.streams) > 0 {
			g.add(op{Do: "close", On: pick(g, g.streams)})
		}
	case 20:
		if len(g.jobs) > 0 {
			g.add(op{Do: "done", On: pick(g, g.jobs)})
		}
	case 21:
		if len(g.jobs) > 0 {
			g.add(g.call(op{Do: pick(g, []string{"total", "total", "warm"}), On: pick(g, g.jobs)}))
		}
	case 22:
		id := g.add(g.call(op{Do: "save", Dataset: dataset, N: 1 + g.IntN(300), Draw: g.Uint64()}))
		g.saves = append(g.saves, id)
	case 23, 24:
		o := op{Do: "drop", Dataset: dataset, Number: g.Int64N(3), Inline: g.chance(2)}
		g.add(o)
		if g.chance(2) {
			g.add(op{Do: "gc", Inline: g.chance(2)})
		}
	case 25:
		g.add(op{Do: "gc", Inline: g.chance(2)})
	case 26, 27:
		kind := pick(g, []string{"none", "none", "unavailable", "missing", "wrong", "silent", "slow"})
		g.add(op{Do: "fault", Kind: kind, Share: pick(g, []int{1, 5, 30, 100})})
	case 28:
		if g.chance(2) {
			g.abandon()
		} else {
			g.interrupt()
		}
	case 29:
		if g.chance(8) {
			g.add(op{Do: "shutdown"})
		} else {
			g.add(op{Do: "stats"})
		}
	}
}

func (g *generator) request() *schema.Request {
	r := &schema.Request{
		Dataset: pick(g, []string{"a", "a", "a", "b"}), Batch: 1 + g.Int64N(pick(g, []int64{4, 40, 300})),
		Order: pick(g, []string{"", schema.OrderFree, schema.OrderFree, schema.OrderWindow, "window:1",
			"window:3"}),
		Remainder: pick(g, []string{"", schema.RemainderDrop, schema.RemainderPad}),
		OnError:   pick(g, []string{"", "", schema.OnErrorNull, schema.OnErrorSkip}),
		Columns:   pick(g, [][]string{nil, {"image", "id"}, {"id", "position"}, {"name", "image"}}),
	}
	if g.chance(3) {
		r.Where = pick(g, conditions).text
	}
	if g.chance(5) {
		r.Split = pick(g, []string{"train", "val", "none"})
	}
	if g.chance(2) {
		r.Shuffle = &schema.Shuffle{Seed: g.Uint64(), Epoch: g.Uint64N(5)}
	}
	if g.chance(2) {
		r.World = &schema.World{Size: 1 + g.Int64N(4)}
	}
	if g.chance(3) {
		r.BatchBytes = 1 + g.Int64N(4000)
	}
	if g.chance(4) {
		r.Snapshot = 1 + g.Int64N(3)
	}
	return r
}

func (g *generator) open() {
	o := g.call(op{Do: "open", Request: g.request()})
	if len(g.saves) > 0 && g.chance(3) {
		o.On = pick(g, g.saves)
	}
	id := g.add(o)
	g.jobs = append(g.jobs, id)
	g.world[id] = o.Request.WorldSize()
	g.strict[id] = o.Request.Order == ""
}

// abandon opens a job over an expression, or adds its bytes up, for a caller that cancels
// in the middle of it; and the snapshot is dropped.
func (g *generator) abandon() {
	r := g.request()
	r.Where = pick(g, conditions).text
	r.Dataset, r.Split, r.Snapshot = "a", "", 0
	g.add(op{Do: "open", Request: r, Inline: true, Checks: 1 + g.Int64N(5)})
	if g.chance(2) {
		g.add(op{Do: "drop", Dataset: "a", Inline: true})
	}
	g.add(op{Do: "gc", Inline: true})
}

// interrupt begins where some rows far ahead were served, and cuts the stream off
// again and again after a batch, before it has planned as far.
func (g *generator) interrupt() {
	r := g.request()
	r.Where, r.Split, r.Snapshot, r.Remainder, r.Order, r.Batch = "", "", 0, "", schema.OrderFree, 1+g.Int64N(8)
	job := g.add(op{Do: "open", Request: r, Inline: true})
	on := g.add(op{Do: "stream", On: job, Epochs: 1 + g.Int64N(2), Served: 50 + g.IntN(150), Draw: g.Uint64(),
		Inline: true})
	for range 2 + g.IntN(3) {
		g.add(op{Do: "read", On: on, N: 1})
		on = g.add(op{Do: "resume", On: on, After: 3000, Inline: true})
	}
	g.add(op{Do: "read", On: on, N: 1000})
	g.streams = append(g.streams, on)
}

func (g *generator) stream() {
	if len(g.jobs) == 0 {
		return
	}
	job := pick(g, g.jobs)
	o := g.call(op{Do: "stream", On: job, Rank: int(g.Int64N(g.world[job])), Stride: 1 + g.Int64N(2),
		Epochs: 1 + g.Int64N(3)})
	o.Checks = 0
	o.Deadline *= 10
	if o.Step = g.Int64N(o.Stride); g.chance(4) {
		o.Step += o.Stride * g.Int64N(3)
	}
	if !g.strict[job] && g.chance(3) {
		o.Served, o.Draw = 1+g.IntN(150), g.Uint64()
	}
	g.streams = append(g.streams, g.add(o))
	g.read()
}

func (g *generator) read() {
	if len(g.streams) == 0 {
		return
	}
	on := g.streams[len(g.streams)-1]
	if g.chance(3) {
		on = pick(g, g.streams)
	}
	g.add(op{Do: "read", On: on, N: pick(g, []int{1, 2, 5, 1000}), Pause: pick(g, []int64{0, 0, 1, 100}),
		Hold: g.chance(4)})
}

// resume goes on after a batch of a stream, sometimes again and again.
func (g *generator) resume() {
	if len(g.streams) == 0 {
		return
	}
	on := pick(g, g.streams)
	for range pick(g, []int{1, 1, 3}) {
		o := op{Do: "resume", On: on, N: g.IntN(4)}
		if g.chance(3) {
			o.World, o.Rank = 1+g.Int64N(4), g.IntN(4)
		}
		if g.chance(6) {
			o.Deadline = pick(g, []int64{10, 100})
		}
		on = g.add(o)
		g.streams = append(g.streams, on)
		g.read()
	}
}
