package readtest_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"bowstring/fetch/read"
	"bowstring/internal/leaktest"
	"bowstring/internal/readtest"
	"bowstring/schema"
	"bowstring/spill"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// memory is a correct CachingTier of blobs in memory, which waits for a gate. Each fault is a field that replaces or
// changes its behaviour.
type memory struct {
	name   func() string
	traits func() read.Traits
	has    func(has bool) bool
	get    func(blob schema.Blob, err error) (schema.Blob, error)
	fetch  func(cells []read.Cell, to read.Answers)
	offer  func(ref schema.BlobRef, blob schema.Blob)
	missed func()
	closed func()
	deaf   bool // ignores that contexts end
	blind  bool // does not check

	ended <-chan struct{} // the test's end, which unblocks what blocks for ever

	mu    sync.Mutex // guards the fields below
	blobs map[schema.Key][]byte
	gate  chan struct{} // nil if open
}

func (m *memory) Name() string {
	if m.name != nil {
		return m.name()
	}
	return "memory"
}

func (m *memory) Traits() read.Traits {
	if m.traits != nil {
		return m.traits()
	}
	return read.Traits{Parallel: 4, Checked: true}
}

func (m *memory) Has(ref schema.BlobRef) bool {
	m.mu.Lock()
	_, has := m.blobs[ref.Key]
	m.mu.Unlock()
	if m.has != nil {
		return m.has(has)
	}
	return has
}

// wait waits for the gate.
func (m *memory) wait(ctx context.Context) error {
	m.mu.Lock()
	gate := m.gate
	m.mu.Unlock()
	if gate == nil {
		return nil
	}
	var done <-chan struct{}
	if !m.deaf {
		done = ctx.Done()
	}
	select {
	case <-gate:
		return nil
	case <-done:
		return context.Cause(ctx)
	case <-m.ended:
		return errors.New("the test has ended")
	}
}

func (m *memory) Fetch(cells []read.Cell, to read.Answers) {
	if m.fetch != nil {
		m.fetch(cells, to)
		return
	}
	if len(cells) == 1 { // so that it is this goroutine that panics
		to.Answer(0, m.one(&cells[0]))
		return
	}
	read.Each(cells, to, m.one)
}

func (m *memory) one(c *read.Cell) (a read.Answer) {
	a.Blob, a.Err = m.read(c.Context, c.Ref)
	if m.get != nil {
		a.Blob, a.Err = m.get(a.Blob, a.Err)
	}
	return a
}

func (m *memory) read(ctx context.Context, ref schema.BlobRef) (schema.Blob, error) {
	if err := m.wait(ctx); err != nil {
		return schema.Blob{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	data, ok := m.blobs[ref.Key]
	if !ok {
		return schema.Blob{}, fmt.Errorf("%w: no blob %s", schema.ErrNotFound, ref.Key)
	}
	if !m.blind {
		if err := ref.Check(data); err != nil {
			return schema.Blob{}, err
		}
	}
	return schema.NewBlob(data, nil), nil
}

func (m *memory) Offer(ref schema.BlobRef, at spill.Place, _ time.Duration, blob schema.Blob) {
	if m.offer != nil {
		m.offer(ref, blob)
		return
	}
	if at.Dataset != 0 {
		m.keep(ref, bytes.Clone(blob.Bytes()))
	}
	blob.Release()
}

func (m *memory) Missed(spill.Place, int64) {
	if m.missed != nil {
		m.missed()
	}
}

func (m *memory) keep(ref schema.BlobRef, data []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.blobs[ref.Key] = data
}

func (m *memory) put(_ context.Context, data []byte) (schema.BlobRef, error) {
	ref := schema.RefOf(data)
	m.keep(ref, bytes.Clone(data))
	return ref, nil
}

func (m *memory) spoil() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, data := range m.blobs {
		data[len(data)/2] ^= 1
	}
	return nil
}

func (m *memory) churn() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	clear(m.blobs)
	return nil
}

func (m *memory) hang() func() {
	gate := make(chan struct{})
	m.mu.Lock()
	defer m.mu.Unlock()
	m.gate = gate
	return sync.OnceFunc(func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.gate = nil
		close(gate)
	})
}

func (m *memory) close() error {
	if m.closed != nil {
		m.closed()
	}
	return nil
}

// opener opens a memory with a fault, or none.
func opener(t testing.TB, fault func(*memory)) readtest.Opener {
	ended := make(chan struct{})
	t.Cleanup(func() { close(ended) })
	return func() (readtest.Subject, error) {
		m := &memory{blobs: map[schema.Key][]byte{}, ended: ended}
		if fault != nil {
			fault(m)
		}
		return readtest.Subject{
			Tier: m, At: spill.Place{Dataset: 1, Position: 5}, Put: m.put, Close: m.close,
			Churn: m.churn, Spoil: m.spoil, Hang: m.hang,
		}, nil
	}
}

// wiping is an owner that wipes the bytes when they are released.
type wiping []byte

func (w wiping) Unpin() { clear(w) }

// faults are tiers with one fault each.
var faults = map[string]struct {
	found string // the case that must fail
	says  string // a part of the expected message
	hangs bool   // the fault shows as a call that does not end
	make  func(*memory)
}{
	"has no name": {"name and traits", "no name", false, func(m *memory) {
		m.name = func() string { return "" }
	}},
	"allows less than no reads": {"name and traits", "-1", false, func(m *memory) {
		m.traits = func() read.Traits { return read.Traits{Parallel: -1} }
	}},
	"has other traits later": {"name and traits", "traits", false, func(m *memory) {
		n := 0
		m.traits = func() read.Traits { n++; return read.Traits{Parallel: n} }
	}},
	"denies what it has": {"blobs that are there", "Has", false, func(m *memory) {
		m.has = func(bool) bool { return false }
	}},
	"cuts blobs": {"blobs that are there", "other bytes", false, func(m *memory) {
		m.get = func(b schema.Blob, err error) (schema.Blob, error) {
			return schema.NewBlob(b.Bytes()[:min(len(b.Bytes()), 4096)], nil), err
		}
	}},
	"shares one hold": {"blobs that are there", "other bytes", false, func(m *memory) {
		m.get = func(b schema.Blob, err error) (schema.Blob, error) {
			return schema.NewBlob(b.Bytes(), wiping(b.Bytes())), err
		}
	}},
	"reuses a buffer": {"held blobs stay", "other bytes", false, func(m *memory) {
		buffer := make([]byte, 2<<20)
		m.get = func(b schema.Blob, err error) (schema.Blob, error) {
			return schema.NewBlob(buffer[:copy(buffer, b.Bytes())], nil), err
		}
	}},
	"takes blobs back when closed": {"held blobs stay", "other bytes", false, func(m *memory) {
		var out [][]byte
		m.get = func(b schema.Blob, err error) (schema.Blob, error) {
			out = append(out, b.Bytes())
			return b, err
		}
		m.closed = func() {
			for _, b := range out {
				clear(b)
			}
		}
	}},
	"returns nothing for what is not there": {"blobs that are not there", "no error", false, func(m *memory) {
		m.get = func(b schema.Blob, _ error) (schema.Blob, error) { return b, nil }
	}},
	"does not say that it is not there": {"blobs that are not there", "want one that wraps", false, func(m *memory) {
		m.get = func(b schema.Blob, err error) (schema.Blob, error) {
			if err != nil {
				err = errors.New("something is wrong")
			}
			return b, err
		}
	}},
	"panics": {"blobs that are not there", "panic", false, func(m *memory) {
		m.get = func(b schema.Blob, err error) (schema.Blob, error) {
			if err != nil {
				panic(err)
			}
			return b, nil
		}
	}},
	"goes by the key alone": {"blobs that are not there", "another checksum", false, func(m *memory) {
		m.blind = true
	}},
	"returns wrong bytes": {"checked bytes are right", "other bytes", false, func(m *memory) { m.blind = true }},
	"does not end": {"fetch ends with its context", "Fetch does not return", true, func(m *memory) {
		m.deaf = true
	}},
	"has waits for ever": {"blobs that are there", "Has does not return", true, func(m *memory) {
		m.has = func(bool) bool { <-m.ended; return true }
	}},
	"has waits with a get": {"has does not wait", "Has does not return", true, func(m *memory) {
		m.has = func(has bool) bool { _ = m.wait(context.Background()); return has }
	}},
	"mixes cells up": {"cells together", "other bytes", false, func(m *memory) {
		m.fetch = func(cells []read.Cell, to read.Answers) {
			for i := range cells {
				to.Answer(i, m.one(&cells[i/7*7]))
			}
		}
	}},
	"answers twice": {"cells together", "2 times", false, func(m *memory) {
		m.fetch = func(cells []read.Cell, to read.Answers) {
			read.Each(cells, to, m.one)
			to.Answer(len(cells)-1, read.Answer{Err: schema.ErrNotFound})
		}
	}},
	"ends with the first that is not there": {"cells together", "0 times", false, func(m *memory) {
		m.fetch = func(cells []read.Cell, to read.Answers) {
			for i := range cells {
				a := m.one(&cells[i])
				if to.Answer(i, a); a.Err != nil {
					return
				}
			}
		}
	}},
	"has cells wait for each other": {"cells are released one by one", "are not released", true, func(m *memory) {
		m.fetch = func(cells []read.Cell, to read.Answers) {
			for i := range cells {
				to.Answer(i, m.one(&cells[i]))
			}
		}
	}},
	"fails at once": {"concurrent fetches", "too many", false, func(m *memory) {
		var all sync.Mutex
		n := 0
		m.get = func(b schema.Blob, err error) (schema.Blob, error) {
			all.Lock()
			defer all.Unlock()
			if n++; n > 50 {
				return schema.Blob{}, errors.New("too many")
			}
			return b, err
		}
	}},
	"leaks what is offered": {"offers are released once", "is released", true, func(m *memory) {
		m.offer = func(ref schema.BlobRef, b schema.Blob) { m.keep(ref, bytes.Clone(b.Bytes())) }
	}},
	"leaks what it does not keep": {"offers are released once", "is released", true, func(m *memory) {
		m.offer = func(ref schema.BlobRef, b schema.Blob) {
			if m.Has(ref) {
				return
			}
			m.keep(ref, bytes.Clone(b.Bytes()))
			b.Release()
		}
	}},
	"releases twice": {"offers are released once", "2 times", false, func(m *memory) {
		m.offer = func(_ schema.BlobRef, b schema.Blob) {
			again := b
			b.Release()
			again.Release()
		}
	}},
	"keeps nothing": {"offers are found", "is there", true, func(m *memory) {
		m.offer = func(_ schema.BlobRef, b schema.Blob) { b.Release() }
	}},
	"keeps bytes that it has released": {"offers are found", "checksum", false, func(m *memory) {
		m.offer = func(ref schema.BlobRef, b schema.Blob) { m.keep(ref, b.Bytes()); b.Release() }
	}},
	"offer waits": {"offers do not wait", "Offer does not return", true, func(m *memory) {
		m.offer = func(_ schema.BlobRef, b schema.Blob) { _ = m.wait(context.Background()); b.Release() }
	}},
	"forgets all at a miss": {"misses do not disturb", "Has", false, func(m *memory) {
		m.missed = func() { _ = m.churn() }
	}},
}

// TestFindsFaults: the suite must find each fault, in the case that is about it.
func TestFindsFaults(t *testing.T) {
	for name, fault := range faults {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cases := readtest.Cases()
			i := slices.IndexFunc(cases, func(c readtest.Case) bool { return c.Name == fault.found })
			if i < 0 {
				t.Fatalf("there is no case %q", fault.found)
			}
			limit := time.Minute
			if fault.hangs {
				limit = 3 * time.Second
			}
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			err := cases[i].Check(ctx, opener(t, fault.make))
			if err == nil || !strings.Contains(err.Error(), fault.says) {
				t.Errorf("the case %q finds %v; want it to say %q", fault.found, err, fault.says)
			}
		})
	}
}

// TestPasses: the suite finds no fault in a correct tier.
func TestPasses(t *testing.T) {
	readtest.Run(t, func(t testing.TB) readtest.Opener { return opener(t, nil) })
}

// TestEveryCaseFinds: each case finds some fault.
func TestEveryCaseFinds(t *testing.T) {
	found := map[string]bool{}
	for _, f := range faults {
		found[f.found] = true
	}
	for _, c := range readtest.Cases() {
		if !found[c.Name] {
			t.Errorf("no fault is found by %q", c.Name)
		}
	}
}
