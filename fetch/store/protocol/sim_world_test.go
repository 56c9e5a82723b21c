package protocol

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// world is where a simulation happens. One task runs at a time, until it waits;
// which is next, how long everything takes and what goes wrong comes from the
// seed. Time passes only where all tasks wait.
type world struct {
	seed  uint64
	rng   *rand.Rand
	now   time.Duration // since the beginning
	seq   int
	steps int

	events  events
	idle    *coroutines
	ready   []*task
	polled  []*task // those that wait for a channel or a context
	current *task
	procs   []*process
	tasks   int

	hash  uint64           // of all that happened, in order
	trace *strings.Builder // nil unless somebody reads it
	fault error            // the first thing that was found wrong

	faults faults
	packed bool // the database is a bucket
	db     *replicas
	oracle *oracle
	memo   rowMemo // of all processes: what a row decodes to is never changed
}

// event is due at a time: f is called, or a waiting task continues.
type event struct {
	at   time.Duration
	seq  int
	f    func()
	task *task
	wait int
}

// task is a goroutine of a process.
type task struct {
	p     *process
	id    int
	on    *coroutine
	ended bool

	waiting bool
	waits   int             // counts them
	ctx     context.Context //nolint:containedctx // of the wait
	ch      <-chan struct{}
	until   time.Duration // negative for no limit
}

// killed is the panic that ends the tasks of a process that is dead.
type killed struct{}

func newWorld(seed uint64, idle *coroutines) *world {
	return &world{seed: seed, idle: idle, rng: rand.New(rand.NewPCG(seed, 0x5eed)), hash: 14695981039346656037}
}

// note takes something down for the hash.
func (w *world) note(kind string, n int) {
	for i := range len(kind) {
		w.hash = (w.hash ^ uint64(kind[i])) * 1099511628211
	}
	w.hash = (w.hash ^ uint64(n)) * 1099511628211
	w.hash = (w.hash ^ uint64(w.now)) * 1099511628211
}

func (w *world) say(p *process, format string, args ...any) {
	if w.trace == nil {
		return
	}
	name := "-"
	if p != nil {
		name = p.name
	}
	fmt.Fprintf(w.trace, "%12v %-10s %s\n", w.now, name, fmt.Sprintf(format, args...))
}

// wrong says that something is as it must not be.
func (w *world) wrong(format string, args ...any) {
	err := fmt.Errorf(format, args...)
	w.say(nil, "WRONG: %v", err)
	if w.fault == nil {
		w.fault = err
	}
}

// chance is true once in this many times, never for 0.
func (w *world) chance(in int) bool { return in > 0 && w.rng.IntN(in) == 0 }

// between draws a duration.
func (w *world) between(from, to time.Duration) time.Duration {
	return from + time.Duration(w.rng.Int64N(int64(to-from)+1))
}

// after has f called.
func (w *world) after(d time.Duration, f func()) { w.push(event{at: w.now + d, f: f}) }

func (w *world) push(e event) {
	w.seq++
	e.seq = w.seq
	w.events.push(e)
}

// start begins a task of a process.
func (w *world) start(p *process, f func()) {
	if p.dead {
		return
	}
	w.tasks++
	t := &task{p: p, id: w.tasks, on: w.idle.take()}
	t.on.run = func() {
		defer func() {
			t.ended = true
			if r := recover(); r != nil && r != (killed{}) {
				panic(r)
			}
		}()
		if !p.dead {
			f()
		}
	}
	p.tasks = append(p.tasks, t)
	w.wake(t)
}

// wake makes a task ready, once its process is not suspended.
func (w *world) wake(t *task) {
	t.waiting = false
	t.waits++
	if t.p.frozen {
		t.p.thaw = append(t.p.thaw, t)
	} else {
		w.ready = append(w.ready, t)
	}
}

// run runs events until a time, or until no event is left.
func (w *world) run(until time.Duration) {
	for w.fault == nil {
		switch {
		case len(w.ready) > 0:
			i := w.rng.IntN(len(w.ready))
			t := w.ready[i]
			w.ready = slices.Delete(w.ready, i, i+1)
			w.step(t)
		case len(w.events) > 0 && w.events[0].at <= until:
			e := w.events.pop()
			w.now = e.at
			if e.f != nil {
				e.f()
			} else if e.task.waiting && e.task.waits == e.wait {
				w.wake(e.task)
			}
		default:
			w.now = max(w.now, until)
			return
		}
		if w.steps++; w.steps > 1<<20 {
			w.wrong("it does not come to an end")
		}
	}
}

// step has a task run until it waits, and wakes those that it made ready.
func (w *world) step(t *task) {
	w.note("task", t.id)
	w.current = t
	if !w.goOn(t) {
		t.p.tasks = slices.DeleteFunc(t.p.tasks, func(other *task) bool { return other == t })
	}
	w.current = nil
	w.poll()
}

// goOn runs a task until it waits, and says whether it has not ended.
func (w *world) goOn(t *task) bool {
	t.on.next()
	if t.ended {
		w.idle.give(t.on)
		t.on = nil
	}
	return !t.ended
}

// poll wakes the tasks whose channel is closed, or whose context is done.
func (w *world) poll() {
	w.polled = slices.DeleteFunc(w.polled, func(t *task) bool {
		if t.waiting && (closed(t.ch) || t.ctx.Err() != nil) {
			w.wake(t)
		}
		return !t.waiting
	})
}

func closed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

// wait has the current task wait.
func (w *world) wait(ctx context.Context, ch <-chan struct{}, d time.Duration) error {
	t := w.current
	if t.p.dead {
		panic(killed{})
	}
	t.ctx, t.ch, t.until = ctx, ch, -1
	if d >= 0 {
		t.until = w.now + d
	}
	if !closed(ch) && ctx.Err() == nil {
		t.waiting = true
		t.waits++
		if d >= 0 {
			w.push(event{at: t.until, task: t, wait: t.waits})
		}
		if ch != nil || ctx.Done() != nil {
			w.polled = append(w.polled, t)
		}
		t.on.yield(struct{}{})
		if t.p.dead {
			panic(killed{})
		}
	}
	over := closed(ch) || t.until >= 0 && w.now >= t.until
	if over && (ctx.Err() == nil || w.chance(2)) {
		return nil
	}
	return context.Cause(ctx)
}

// process is a process of the store's users. Its clock is its own.
type process struct {
	w     *world
	name  string
	clock time.Duration // how far it is from the world's
	tasks []*task

	dead   bool
	frozen bool
	thaw   []*task // ready when it is suspended no more
	calls  int
	hurtAt []int // the calls at which something happens to the process
}

var epoch0 = time.Date(2026, 3, 29, 0, 0, 0, 0, time.UTC)

func (p *process) Now() time.Time { return epoch0.Add(p.w.now + p.clock) }

func (p *process) Wait(ctx context.Context, ch <-chan struct{}, d time.Duration) error {
	return p.w.wait(ctx, ch, d)
}

func (p *process) Go(f func()) { p.w.start(p, f) }

func (p *process) Rand() uint64 { return p.w.rng.Uint64() }

// suspend stops the process for a while, wherever it is.
func (p *process) suspend(d time.Duration) {
	w := p.w
	if p.frozen || p.dead {
		return
	}
	w.say(p, "is suspended for %v", d)
	w.note("suspend", int(d))
	p.frozen = true
	w.ready = slices.DeleteFunc(w.ready, func(t *task) bool {
		if t.p == p {
			p.thaw = append(p.thaw, t)
		}
		return t.p == p
	})
	w.after(d, func() {
		if p.dead || !p.frozen {
			return
		}
		w.say(p, "goes on")
		p.frozen = false
		w.ready = append(w.ready, p.thaw...)
		p.thaw = nil
	})
}

// kill ends the process. Messages that it has sent are still in flight.
func (p *process) kill() {
	w := p.w
	if p.dead {
		return
	}
	w.say(p, "is dead")
	w.note("kill", 0)
	p.dead, p.frozen = true, false
	own := func(t *task) bool { return t.p == p }
	w.ready = slices.DeleteFunc(w.ready, own)
	w.polled = slices.DeleteFunc(w.polled, own)
	p.thaw = nil
	running := w.current
	for _, t := range slices.Clone(p.tasks) {
		if t == running {
			continue // it ends when it waits next
		}
		t.waiting = false
		w.current = t
		for w.goOn(t) {
		}
	}
	w.current = running
	p.tasks = slices.DeleteFunc(p.tasks, func(t *task) bool { return t != running })
}
