package lookahead

import (
	"testing"
	"testing/synctest"
	"time"
)

// A job that another node is about to announce is waited for: until it is known, its announcement fails, or for a
// while.
func TestExpected(t *testing.T) {
	f := newFixture(t)
	j := f.open(t, 1, 0, 2)
	places := f.Places(j)
	number := places.At(0, 0).Dataset
	synctest.Test(t, func(t *testing.T) {
		a := &Ahead{opts: f.opts}
		if a.await(t.Context(), number) != nil {
			t.Fatal("a job is known that no node has announced")
		}
		ask := func() <-chan *running {
			found := make(chan *running, 1)
			go func() { found <- a.await(t.Context(), number) }()
			synctest.Wait()
			if len(found) != 0 {
				t.Fatal("what is expected is not waited for")
			}
			return found
		}
		first, second := a.Expect(), a.Expect()
		found := ask()
		first() // without a job
		synctest.Wait()
		if len(found) != 0 {
			t.Fatal("what is expected of another node is not waited for")
		}
		second()
		if l := <-found; l != nil {
			t.Fatalf("%+v is known, and no node has announced it", l)
		}
		began := time.Now()
		third := a.Expect()
		if l := <-ask(); l != nil || time.Since(began) != expectFor {
			t.Fatalf("%+v is found after %s, want nothing after %s", l, time.Since(began), expectFor)
		}
		found = ask()
		part := a.FollowElsewhere(j, 0, 1, 0, 1)
		third()
		l := <-found
		if l != part.job {
			t.Fatalf("%+v is found, want the job", l)
		}
		l.order.job.Release()
		part.Leave()
		a.Close()
	})
}
