package admission_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"bowstring/fetch/admission"
)

// item is an item of these tests.
type item struct {
	owner string
	class int
	cost  int64
}

func classOf(i *item) int { return i.class }

// A tenant with more jobs or streams does not get more; weights count.
func TestQueueShares(t *testing.T) {
	q := admission.NewQueue(1, classOf, func(i *item, _ int) admission.Taken {
		return admission.Taken{OK: true, Cost: i.cost}
	})
	fill := func(tenant string, weight int64, jobs, streams, items int, cost int64) {
		for j := range jobs {
			for range streams {
				s := q.Open(tenant, weight, fmt.Sprint(j))
				for range items {
					s.Put(item{owner: fmt.Sprintf("%s/%d", tenant, j), cost: cost})
				}
			}
		}
	}
	fill("many", 1, 10, 10, 100, 1000)
	fill("few", 1, 1, 1, 1000, 3000)
	fill("heavy", 2, 1, 1, 4000, 500)
	got := map[string]int64{}
	var all int64
	for range 2000 {
		i, _, ok := q.Take()
		if !ok {
			t.Fatal("the queue is empty")
		}
		got[i.owner] += i.cost
		all += i.cost
	}
	near := func(owner string, want float64) {
		if share := float64(got[owner]) / float64(all); share < 0.95*want || share > 1.05*want {
			t.Errorf("%s got %.3f of all, want %.3f", owner, share, want)
		}
	}
	near("few/0", 1./4)
	near("heavy/0", 2./4)
	for j := range 10 {
		near(fmt.Sprintf("many/%d", j), 1./40)
	}
}

// If a class has no room, items of other classes go on. No order of events loses an item, or takes it twice.
func TestQueueAtRandom(t *testing.T) {
	for range 200 {
		seed := rand.Uint64()
		rng := rand.New(rand.NewPCG(seed, 1))
		room := []int{0, 0, 0}
		flip := map[string]int{}
		q := admission.NewQueue(len(room), classOf, func(i *item, class int) admission.Taken {
			if c, ok := flip[i.owner]; ok && c != class { // it has changed its class
				i.class = c
				return admission.Taken{Class: c}
			}
			if room[class] == 0 {
				return admission.Taken{Class: class}
			}
			room[class]--
			return admission.Taken{OK: true, Cost: i.cost}
		})
		var streams []*admission.Stream[item]
		waiting, next := map[string]bool{}, 0
		of, closed := map[string]int{}, map[int]bool{}
		for step := range 400 {
			switch rng.IntN(6) {
			case 0:
				streams = append(streams, q.Open(fmt.Sprint(rng.IntN(3)), rng.Int64N(3), fmt.Sprint(rng.IntN(4))))
			case 1, 2:
				if len(streams) > 0 {
					s := rng.IntN(len(streams))
					i := item{owner: fmt.Sprint(next), class: rng.IntN(len(room)), cost: rng.Int64N(5000)}
					next++
					streams[s].Put(i)
					if !closed[s] {
						waiting[i.owner], of[i.owner] = true, s
					}
				}
			case 3:
				if next > 0 {
					flip[fmt.Sprint(rng.IntN(next))] = rng.IntN(len(room))
				}
				room[rng.IntN(len(room))] += rng.IntN(4)
			case 4:
				for {
					i, _, ok := q.Take()
					if !ok {
						break
					}
					if !waiting[i.owner] {
						t.Fatalf("seed %d, step %d: %s was given out, and does not wait", seed, step, i.owner)
					}
					delete(waiting, i.owner)
				}
			case 5:
				if len(streams) > 0 && rng.IntN(8) == 0 {
					s := rng.IntN(len(streams))
					streams[s].Close()
					streams[s].Close()
					closed[s] = true
					for owner, at := range of {
						if at == s {
							delete(waiting, owner)
						}
					}
				}
			}
			if n := q.Waiting(); n != len(waiting) {
				t.Fatalf("seed %d, step %d: %d items wait, want %d", seed, step, n, len(waiting))
			}
		}
		for c := range room {
			room[c] = 1 << 20
		}
		for range len(waiting) {
			if _, _, ok := q.Take(); !ok {
				t.Fatalf("seed %d: there is room, %d items wait, and none is given out", seed, q.Waiting())
			}
		}
	}
}
