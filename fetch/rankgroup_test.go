package fetch_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"bowstring/fetch"
	"bowstring/schema"
)

// readTimes counts the reads of each blob of a store.
type readTimes struct {
	mu    sync.Mutex
	times map[schema.BlobRef]int
}

func countReads(p *probe) *readTimes {
	c := &readTimes{times: map[schema.BlobRef]int{}}
	p.inject(func(_ context.Context, ref schema.BlobRef) (func([]byte) []byte, error) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.times[ref]++
		return nil, nil
	})
	return c
}

// of is how often the images of a job were read, and how many there are.
func (c *readTimes) of(t *testing.T, j *fetch.Job) (reads, images, most int) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	for pos := range j.Manifest().Rows() {
		if ref, ok := refAt(t, j, pos); ok {
			images++
			reads += c.times[ref]
			most = max(most, c.times[ref])
		}
	}
	return reads, images, most
}

// meshes are worlds in which several ranks get the same.
var meshes = []*schema.World{
	{Size: 4, Replicate: 4}, {Size: 6, Replicate: 2}, {Mesh: "dp=2,tp=4"}, {Mesh: "tp=2,dp=3"},
	{Mesh: "pp=2,dp_replicate=2,dp_shard=1,tp=2"},
}

// ranksOf opens a job and a stream for each rank of a world.
func ranksOf(t *testing.T, e *fetch.Engine, req schema.Request, change func(rank int, r *schema.Ticket)) (jobs []*fetch.Job,
	streams []*fetch.Stream) {
	t.Helper()
	for rank := range int(req.WorldSize()) {
		tk := ticket(req, rank)
		if change != nil {
			change(rank, &tk)
		}
		j := resolve(t, e, tk.Request)
		jobs = append(jobs, j)
		streams = append(streams, start(t, e, j, tk))
	}
	return jobs, streams
}

// step is what a rank got in a step.
type step struct {
	epoch uint64
	step  int64
}

// bySteps reads a stream to its end, and pauses now and then; it returns the positions and the digest of each step.
func bySteps(t *testing.T, j *fetch.Job, s *fetch.Stream, pause func()) (map[step][]int64, map[step]string) {
	got, digests := map[step][]int64{}, map[step]string{}
	for b := range batches(t, s) {
		compare(t, j, b)
		at := step{b.Epoch, b.Step}
		got[at] = append(got[at], b.Positions...)
		if (b.Digest != "") != (b.Last && j.Request().Digest) {
			t.Errorf("step %d: the digest is %q, and it is the step's last batch: %t", b.Step, b.Digest, b.Last)
		}
		if b.Last {
			digests[at] = b.Digest
		}
		pause()
	}
	return got, digests
}

// Each blob is read once for all ranks that get it, whatever their cuts into batches and however they keep up
// with each other, as long as the memory for it lasts; and all get the same.
func TestRankGroupReadOnce(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	st := newStore(t)
	put(t, st, "d", 1200)
	for i, world := range meshes {
		t.Run(world.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rng := rand.New(rand.NewPCG(seed, uint64(i)))
				e := must(fetch.NewEngine(st, fetch.Options{Logger: quiet, WindowBytes: 6 << 20}))
				reads := countReads(st)
				req := schema.Request{Dataset: "d", World: world, Batch: 60, Digest: true,
					Shuffle: &schema.Shuffle{Seed: rng.Uint64()}}
				jobs, streams := ranksOf(t, e, req, func(_ int, r *schema.Ticket) {
					r.BatchBytes = 1 + rng.Int64N(40_000)
				})
				got := make([]map[step][]int64, len(streams))
				digests := make([]map[step]string, len(streams))
				var running sync.WaitGroup
				for rank, s := range streams {
					own := rand.New(rand.NewPCG(seed, uint64(rank)))
					running.Go(func() {
						got[rank], digests[rank] = bySteps(t, jobs[rank], s, func() { time.Sleep(time.Duration(own.IntN(2000)) * time.Microsecond) })
					})
				}
				running.Wait()
				rows := 0
				first := map[int]int{} // rank by data rank
				for rank := range streams {
					data := req.DataRank(rank)
					if of, ok := first[data]; !ok {
						first[data] = rank
						for _, positions := range got[rank] {
							rows += len(positions)
						}
					} else if !maps.EqualFunc(got[rank], got[of], slices.Equal) || !maps.Equal(digests[rank], digests[of]) {
						t.Errorf("ranks %d and %d are data rank %d and got different samples, or digests", of, rank, data)
					}
				}
				if rows != 1200 {
					t.Errorf("all data ranks together got %d rows, want %d", rows, 1200)
				}
				n, images, most := reads.of(t, jobs[0])
				if n != images || most > 1 {
					t.Errorf("%d reads of %d images, one of them %d times", n, images, most)
				}
				closeAll(t, e, jobs, streams)
			})
		})
	}
}

func closeAll(t *testing.T, e *fetch.Engine, jobs []*fetch.Job, streams []*fetch.Stream) {
	t.Helper()
	for i := range streams {
		streams[i].Close()
		jobs[i].Close()
	}
	if n := e.Stats().RankGroupBytes; n != 0 {
		t.Errorf("%d bytes are held for no stream", n)
	}
	if n := e.Stats().WindowUsed; n != 0 {
		t.Errorf("%d bytes of windows are counted in without a stream", n)
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
}

// A rank that is further behind than the memory lasts reads again what the others had, and no more memory is taken; one
// that is behind by less does not.
func TestRankGroupLaggard(t *testing.T) {
	st := newStore(t)
	put(t, st, "d", 1000) // of 1.5 MB
	for _, c := range []struct {
		window int64
		far    bool
	}{{window: 400_000, far: true}, {window: 16 << 20}} {
		t.Run(fmt.Sprintf("window=%d", c.window), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := must(fetch.NewEngine(st, fetch.Options{Logger: quiet, WindowBytes: c.window}))
				reads := countReads(st)
				req := schema.Request{Dataset: "d", World: &schema.World{Size: 3, Replicate: 3}, Batch: 20,
					Shuffle: &schema.Shuffle{Seed: 3}, Columns: []string{"image"}}
				jobs, streams := ranksOf(t, e, req, nil)
				var first []int64
				for b := range batches(t, streams[0]) {
					first = append(first, b.Positions...)
					if used := e.Stats().WindowUsed; used > c.window {
						t.Fatalf("%d bytes of windows are counted in", used)
					}
					next := must(streams[1].Next()) // the second keeps up with the first
					next.Release()
				}
				if behind := e.Stats().RankGroupsBehind; (behind > 0) != c.far {
					t.Errorf("%d times a rank was too far behind", behind)
				}
				if held := e.Stats().RankGroupBytes; held > c.window/4 {
					t.Errorf("%d bytes are held of %d for four", held, c.window)
				}
				got := consume(t, jobs[2], streams[2])
				if !slices.Equal(got.positions, first) {
					t.Error("the rank that is behind got other samples")
				}
				n, images, most := reads.of(t, jobs[0])
				switch {
				case !c.far && n != images:
					t.Errorf("%d reads of %d images", n, images)
				case c.far && (n <= images || most > 3): // at worst each rank reads by itself: windows this small part them
					t.Errorf("%d reads of %d images, of one of them %d", n, images, most)
				}
				closeAll(t, e, jobs, streams)
			})
		})
	}
}

// A rank that comes a little later than the others, or comes again after it was cut off, reads nothing anew; for one that
// stays away nothing is held for long.
func TestRankGroupComeAndGo(t *testing.T) {
	st := newStore(t)
	put(t, st, "d", 600)
	synctest.Test(t, func(t *testing.T) {
		e := must(fetch.NewEngine(st, fetch.Options{Logger: quiet, WindowBytes: 64 << 20}))
		reads := countReads(st)
		req := schema.Request{Dataset: "d", World: &schema.World{Mesh: "dp=1,tp=3"}, Batch: 20,
			Shuffle: &schema.Shuffle{Seed: 3}, Columns: []string{"image"}}
		j := resolve(t, e, req)
		early := start(t, e, j, ticket(req, 0))
		take := func(s *fetch.Stream, n int) (last schema.Ticket) {
			for range n {
				b := must(s.Next())
				compare(t, j, b)
				last = b.Resume
				b.Release()
			}
			return last
		}
		take(early, 10)
		time.Sleep(3 * time.Second)
		late := start(t, e, j, ticket(req, 1))
		left := take(late, 4)
		late.Close()
		take(early, 8)
		time.Sleep(3 * time.Second)
		late = start(t, e, j, left)
		take(late, 26)
		take(early, 2)
		if n, images, most := reads.of(t, j); most > 1 {
			t.Errorf("%d reads of %d images, of one of them %d", n, images, most)
		}
		time.Sleep(time.Minute) // the third rank never came
		take(early, 10)
		if held := e.Stats().RankGroupBytes; held != 0 {
			t.Errorf("%d bytes are held", held)
		}
		late.Close()
		early.Close()
		j.Close()
		closeAll(t, e, nil, nil)
	})
}

// A stream that has nothing gets the memory that is held for ranks that are behind.
func TestRankGroupGiveWay(t *testing.T) {
	st := newStore(t)
	put(t, st, "d", 1000)
	synctest.Test(t, func(t *testing.T) {
		const window = 300_000
		e := must(fetch.NewEngine(st, fetch.Options{Logger: quiet, WindowBytes: window}))
		req := schema.Request{Dataset: "d", World: &schema.World{Size: 2, Replicate: 2}, Batch: 20,
			Columns: []string{"image"}}
		jobs, streams := ranksOf(t, e, req, nil)
		for range 20 {
			b := must(streams[0].Next())
			b.Release()
		}
		alone := schema.Request{Dataset: "d", Batch: 20, Columns: []string{"image"}}
		j := resolve(t, e, alone)
		s := start(t, e, j, ticket(alone, 0))
		b := must(s.Next())
		compare(t, j, b)
		b.Release()
		for i := range streams {
			consume(t, jobs[i], streams[i])
		}
		closeAll(t, e, append(jobs, j), append(streams, s))
	})
}

// A job that was read on one mesh goes on on another: each sample comes once to each data rank's ranks.
func TestRankGroupElastic(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	st := newStore(t)
	put(t, st, "d", 700)
	e := newEngine(t, st, fetch.Options{})
	for range 10 {
		req := schema.Request{Dataset: "d", Batch: 1 + rng.Int64N(90), Shuffle: &schema.Shuffle{Seed: rng.Uint64()}}
		steps := open(t, e, req).Plan().Steps()
		at := rng.Int64N(steps + 1)
		var got, want []int64
		for _, part := range []struct{ from, to int64 }{{0, at}, {at, steps}} {
			req.World = meshes[rng.IntN(len(meshes))]
			j := open(t, e, req)
			shares := map[int][]int64{}
			for rank := range int(req.WorldSize()) {
				tk := ticket(req, rank)
				tk.Step, tk.Stop = part.from, &part.to
				positions, data := drain(t, e, j, tk).positions, req.DataRank(rank)
				if first, ok := shares[data]; !ok {
					got, shares[data] = append(got, positions...), positions
				} else if !slices.Equal(first, positions) {
					t.Fatalf("%s: rank %d got other samples than the first rank of data rank %d", tk.Marshal(), rank, data)
				}
			}
		}
		for pos := range int64(700) {
			want = append(want, pos)
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Fatalf("%s, with another mesh until step %d: %d samples came of 700, each once", req.Marshal(), at, len(got))
		}
	}
}

// The digest of a step is the same for ranks that read other columns, cut batches otherwise, or begin again within the
// step; and another one of a rank that got other samples.
func TestDigest(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	st := newStore(t)
	put(t, st, "d", 500)
	e := newEngine(t, st, fetch.Options{})
	for range 10 {
		req := schema.Request{Dataset: "d", Batch: 40 + rng.Int64N(90), Digest: true, World: &schema.World{Mesh: "dp=2,tp=2"},
			Shuffle: &schema.Shuffle{Seed: rng.Uint64(), Epoch: rng.Uint64N(9)}}
		pause := func() {}
		digestsOf := func(r schema.Request, tk schema.Ticket) map[step]string {
			j := open(t, e, r)
			tk.Request = r
			s := start(t, e, j, tk)
			defer s.Close()
			_, digests := bySteps(t, j, s, pause)
			return digests
		}
		want := digestsOf(req, ticket(req, 0))
		other := req
		other.BatchBytes, other.Columns = 1+rng.Int64N(5000), [][]string{nil, {"label"}, {"image"}, {"id", "image"}}[rng.IntN(4)]
		if got := digestsOf(other, ticket(other, 1)); !maps.Equal(got, want) {
			t.Errorf("with columns %q and batches of %d bytes the digests are %v, want %v", other.Columns, other.BatchBytes,
				got, want)
		}
		for at, digest := range digestsOf(req, ticket(req, 2)) {
			if want[at] == digest {
				t.Errorf("data ranks 0 and 1 have the same digest of step %d", at.step)
			}
		}
		s := start(t, e, open(t, e, other), ticket(other, 1))
		var resumes []schema.Ticket
		for b := range batches(t, s) {
			resumes = append(resumes, must(schema.ParseTicket(b.Resume.Marshal())))
		}
		s.Close()
		for range 5 {
			tk := resumes[rng.IntN(len(resumes))]
			for at, digest := range digestsOf(tk.Request, tk) {
				if want[at] != digest {
					t.Errorf("ticket %s: the digest of step %d is %s, want %s", tk.Marshal(), at.step, digest, want[at])
				}
			}
		}
	}
}

// A sample that one rank gets as null, or another one in its place, makes another digest.
func TestDigestOfFaults(t *testing.T) {
	for _, on := range []string{schema.OnErrorNull, schema.OnErrorSkip} {
		st := newStore(t)
		put(t, st, "d", 100)
		e := newEngine(t, st, fetch.Options{})
		req := schema.Request{Dataset: "d", Batch: 100, Digest: true, OnError: on}
		j := open(t, e, req)
		digest := func() (digest string) {
			s := start(t, e, j, ticket(req, 0))
			defer s.Close()
			for b := range batches(t, s) {
				digest = b.Digest
			}
			return digest
		}
		want := digest()
		bad, _ := refAt(t, j, 17)
		st.inject(func(_ context.Context, ref schema.BlobRef) (func([]byte) []byte, error) {
			if ref == bad {
				return nil, schema.ErrNotFound
			}
			return nil, nil
		})
		if got := digest(); got == want || got == "" {
			t.Errorf("on_error %s: the digest is %q with a sample missing, and %q without", on, got, want)
		}
	}
}
