package cql

import (
	"bytes"
	"context"
	"log/slog"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gocql/gocql"
)

// replicas are three hosts in virtual time, which all have every row, and workers that
// read from them one row after another.
type replicas struct {
	*steering
	hosts    []*gocql.HostInfo
	answers  func(r *replicas, host int, size int) time.Duration // how long it takes; never if negative
	deadline func(r *replicas) time.Duration                     // 0 for never
	size     func(place int, rng *rand.Rand) int
	fails    bool // the last host says that it is overloaded, at once
	began    time.Time
	log      bytes.Buffer
	asking   sync.WaitGroup

	mu     sync.Mutex
	reads  [3][]time.Duration // when requests that block a reader were sent to each host
	probes [3]int
	busy   [3]int // requests that a host has
	whole  int    // reads that were answered
	moves  []move // of the last host's share
}

// move is a change of a share.
type move struct {
	at    time.Duration
	share int32
}

const simulatedWorkers = 24

// simulate reads for so long, and returns what was recorded.
func simulate(t *testing.T, long time.Duration, r *replicas) *replicas {
	t.Helper()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	synctest.Test(t, func(t *testing.T) {
		r.began = time.Now()
		for range 3 {
			r.hosts = append(r.hosts, new(gocql.HostInfo))
		}
		ctx, cancel := context.WithTimeout(t.Context(), long)
		defer cancel()
		r.steering = &steering{
			HostSelectionPolicy: &ringPolicy{hosts: r.hosts},
			log:                 slog.New(slog.NewTextHandler(&r.log, nil)),
			now:                 r.now,
			name:                func(h *gocql.HostInfo) string { return strconv.Itoa(slices.Index(r.hosts, h)) },
			repeat: func(ctx context.Context, h *host, read *reading) error {
				at := slices.Index(r.hosts, h.info)
				r.mu.Lock()
				r.probes[at]++
				r.mu.Unlock()
				return r.request(ctx, at, read.want)
			},
		}
		r.ask = func(h *host, read *reading) { r.asking.Go(func() { r.askUntilRested(ctx, h, read) }) }
		r.steering.replicas.Store(3)
		var workers sync.WaitGroup
		for w := range uint64(simulatedWorkers) {
			workers.Go(func() {
				rng := rand.New(rand.NewPCG(seed, w))
				time.Sleep(time.Duration(rng.IntN(int(20 * time.Millisecond))))
				for ctx.Err() == nil {
					r.readOnce(ctx, rng)
				}
			})
		}
		workers.Wait()
		r.asking.Wait()
	})
	return r
}

func (r *replicas) now() time.Duration { return time.Since(r.began) }

// readOnce reads a row. It asks the next host where one does not answer in time.
func (r *replicas) readOnce(ctx context.Context, rng *rand.Rand) {
	place, size, draw := rng.IntN(3), 100_000, rng.Uint32()
	if r.size != nil {
		size = r.size(place, rng)
	}
	for attempt := range 3 {
		read := newReading(context.WithValue(ctx, placeKey{}, place), "", size)
		read.route.attempt, read.route.draw = attempt, draw
		next := r.Pick(plainQuery{ctx: read})
		at := slices.Index(r.hosts, next().Info())
		r.mu.Lock()
		r.reads[at] = append(r.reads[at], r.now())
		r.mu.Unlock()
		limited, cancel := context.WithTimeout(ctx, time.Second)
		if r.deadline != nil {
			cancel()
			limited, cancel = context.WithTimeout(ctx, r.deadline(r))
		}
		err := r.request(limited, at, size)
		cancel()
		read.route.end(err)
		r.mu.Lock()
		if share := r.host(r.hosts[2]).share.Load(); len(r.moves) == 0 || r.moves[len(r.moves)-1].share != share {
			r.moves = append(r.moves, move{r.now(), share})
		}
		r.mu.Unlock()
		if err == nil {
			r.mu.Lock()
			r.whole++
			r.mu.Unlock()
			return
		}
	}
}

// request is one, to a host.
func (r *replicas) request(ctx context.Context, at, size int) error {
	if r.fails && at == 2 {
		time.Sleep(time.Millisecond)
		return serverError{}
	}
	r.mu.Lock()
	r.busy[at]++
	took := r.answers(r, at, size)
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		r.busy[at]--
		r.mu.Unlock()
	}()
	var answered <-chan time.Time
	if took >= 0 {
		answered = time.After(took)
	}
	select {
	case <-answered:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// shares returns the share of the reads in an interval that each host was asked for.
func (r *replicas) shares(from, to time.Duration) (shares [3]float64) {
	all := 0.0
	for i, reads := range r.reads {
		for _, at := range reads {
			if at >= from && at < to {
				shares[i]++
				all++
			}
		}
	}
	for i := range shares {
		shares[i] /= all
	}
	return shares
}

// even checks that each host was asked for a third of the reads, within the limits of
// chance.
func even(t *testing.T, r *replicas, from, to time.Duration) {
	t.Helper()
	n := 0
	for _, reads := range r.reads {
		for _, at := range reads {
			if at >= from && at < to {
				n++
			}
		}
	}
	chance := 7 * math.Sqrt(2./9/float64(n)) // seven standard deviations: never by chance
	for i, share := range r.shares(from, to) {
		if math.Abs(share-1./3) > chance {
			t.Errorf("host %d is asked for %.3f of the reads between %v and %v, want a third", i, share, from, to)
		}
	}
}

// near is an answer after about 20 ms.
func near(*replicas, int, int) time.Duration {
	return 18*time.Millisecond + time.Duration(rand.IntN(int(4*time.Millisecond)))
}

// slowFrom has the last host answer in 400 ms for some time.
func slowFrom(from, to time.Duration) func(*replicas, int, int) time.Duration {
	return func(r *replicas, host, size int) time.Duration {
		if now := r.now(); host == 2 && now >= from && now < to {
			return 400 * time.Millisecond
		}
		return near(r, host, size)
	}
}
