package operators

import (
	"sync/atomic"

	"bowstring/fetch/admission"
)

// Cells that take long wait in a class of their own. A running cell is not interrupted: if all workers had such cells, those
// of other tenants would wait for as long. So there are workers for them that no other cell waits for, which share the
// processors with the rest.
const (
	classShort = iota // and cells of which it is not known
	classLong

	// longSteps is what a cell takes long with: about a quarter of a second.
	longSteps = 1 << 28
	// stepsPerByte is how many steps count as much as a byte between tenants and jobs. It takes about as many to decode a
	// photograph, by the bytes of the file and of the pixels.
	stepsPerByte = 16
)

func classOfTask(t **Task) int {
	if (*t).long {
		return classLong
	}
	return classShort
}

// runningOf is how many cells of a class are being made.
func (s *Stage) runningOf(class int) *atomic.Int64 {
	if class == classLong {
		return &s.long
	}
	return &s.short
}

// room reports whether a cell of a class may be begun. Cells that take long have half of the workers, also while the
// others have nothing to do: on all processors they left a stream beside them a tenth of its throughput, as a running cell
// gives its processor back after 10 ms at the soonest.
func (s *Stage) room(class int) bool {
	workers := int64(s.opts.Workers)
	if class == classShort {
		return s.short.Load() < workers
	}
	return s.long.Load() < max(workers/2, 1)
}

// take says whether a task may run. It is called with the queue locked.
func (s *Stage) take(t **Task, class int) admission.Taken {
	if !s.room(class) {
		return admission.Taken{Class: class}
	}
	of := (*t).place.tenant
	if most := of.most.Load(); most > 0 && of.running.Load() >= most {
		return admission.Taken{Class: class, Aside: true}
	}
	of.running.Add(1)
	s.runningOf(class).Add(1)
	cost := (*t).share()
	(*t).paid += cost
	return admission.Taken{OK: true, Class: class, Cost: cost}
}

// share is what a task counts for between tenants and jobs, in bytes, beyond what it has paid: the bytes that go in and come
// out, or are about to, or the steps that it takes, once they are known, if these are more.
func (t *Task) share() int64 {
	out := t.Column.Form.CellBytes()
	if out < 0 {
		out = max(t.Guess, 0)
	}
	all := max(int64(len(t.Cell.Bytes()))+out, t.cost.Steps.Int64()/stepsPerByte)
	return max(all-t.paid, 1)
}

// charge has a task pay for what is known of it since it was taken.
func (t *Task) charge() {
	if more := t.share(); more > 1 {
		t.paid += more
		t.place.place.Charge(classOfTask(&t), more)
	}
}
