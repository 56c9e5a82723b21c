package upcoming

import (
	"testing"
	"testing/synctest"
	"time"
)

// await waits for a job that another node is about to announce: until it is known, until its announcement fails, or
// for expectFor.
func TestExpected(t *testing.T) {
	f := newFixture(t)
	j := f.open(t, 1, 0, 2)
	places := f.Places(j)
	number := places.At(0, 0).Dataset
	synctest.Test(t, func(t *testing.T) {
		js := &Jobs{opts: f.opts}
		if js.await(t.Context(), number) != nil {
			t.Fatal("a job is known that no node has announced")
		}
		ask := func() <-chan *running {
			found := make(chan *running, 1)
			go func() { found <- js.await(t.Context(), number) }()
			synctest.Wait()
			if len(found) != 0 {
				t.Fatal("await returned before the announcement")
			}
			return found
		}
		first, second := js.Expect(), js.Expect()
		found := ask()
		first() // without a job
		synctest.Wait()
		if len(found) != 0 {
			t.Fatal("await returned with an announcement outstanding")
		}
		second()
		if l := <-found; l != nil {
			t.Fatalf("%+v is known, and no node has announced it", l)
		}
		began := time.Now()
		third := js.Expect()
		if l := <-ask(); l != nil || time.Since(began) != expectFor {
			t.Fatalf("%+v is found after %s, want nothing after %s", l, time.Since(began), expectFor)
		}
		found = ask()
		part := js.FollowElsewhere(j, 0, 1, 0, 1)
		third()
		l := <-found
		if l != part.job {
			t.Fatalf("%+v is found, want the job", l)
		}
		l.order.job.Release()
		part.Leave()
		js.Close()
	})
}
