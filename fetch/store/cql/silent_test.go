package cql

import (
	"errors"
	"strings"
	"testing"
	"time"

	"bowstring/fetch/read"
	"bowstring/schema"
)

// A read of a store whose servers fall silent ends when its time is over, though the driver would wait for an hour, and
// names the keyspace. The attempts that it leaves behind end with it: the reader and the store can be closed.
func TestReadOfSilentServersEnds(t *testing.T) {
	for _, gathered := range []bool{false, true} {
		hang := make(chan struct{}, 1000)
		m, _ := mockAlone(t, func(int) deed {
			hang <- struct{}{}
			return deed{hang: true}
		})
		s := mockStore(t, "cql://"+m.addr+"/k?timeout=1h&connect=1h")
		r, err := read.New([]read.Tier{read.Store(s)}, read.Options{
			ReadTimeout: 1500 * time.Millisecond, NoHedge: true, Logger: quiet})
		if err != nil {
			t.Fatal(err)
		}
		reads := 1
		if gathered {
			reads = 40 // several share statements
		}
		ended := make(chan error, reads)
		for i := range reads {
			go func() {
				b, err := r.Get(t.Context(), schema.RefOf([]byte{byte(i), 1, 2, 3}))
				if err == nil {
					b.Release()
				}
				ended <- err
			}()
		}
		for range reads {
			err := <-ended // or the test hangs
			if !errors.Is(err, schema.ErrUnavailable) || !strings.Contains(err.Error(), "keyspace k at "+m.addr) ||
				!strings.Contains(err.Error(), "has not sent it for") {
				t.Errorf("gathered: %t: %v", gathered, err)
			}
		}
		if len(hang) == 0 {
			t.Error("nothing was asked for")
		}
		r.Close()
	}
}
