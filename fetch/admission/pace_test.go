package admission_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"bowstring/fetch/admission"
)

// The mean rate is the ceiling, whatever the sizes: a batch of many seconds' worth is sent whole, and paid for
// afterwards.
func TestPaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := admission.NewPaces()
		if waited, err := p.Wait(t.Context(), "a"); waited != 0 || err != nil {
			t.Error(waited, err)
		}
		p.Served("a", 1<<60)
		terms := map[string]admission.Terms{"a": {BytesPerSecond: 1000}, "slow": {BytesPerSecond: 1}}
		p.SetTerms(termsOf(terms))
		for _, n := range []int64{1, 100, 50_000} {
			p.Served("a", 1000) // the allowed burst
			_, _ = p.Wait(t.Context(), "a")
			start := time.Now()
			for range 10 {
				if _, err := p.Wait(t.Context(), "a"); err != nil {
					t.Fatal(err)
				}
				p.Served("a", n)
			}
			_, _ = p.Wait(t.Context(), "a")
			want := time.Duration(10*n) * time.Millisecond
			if took := time.Since(start); took < want-1100*time.Millisecond || took > want+1100*time.Millisecond {
				t.Errorf("batches of %d bytes: %s, want %s", n, took, want)
			}
		}
		// A debt of 30 years ends with the call, and with the ceiling.
		p.Served("slow", 1e9)
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if waited, err := p.Wait(ctx, "slow"); !errors.Is(err, context.DeadlineExceeded) || waited != time.Hour {
			t.Error(waited, err)
		}
		done := make(chan error)
		go func() {
			_, err := p.Wait(t.Context(), "slow")
			done <- err
		}()
		synctest.Wait()
		terms = map[string]admission.Terms{}
		p.SetTerms(termsOf(terms))
		if err := <-done; err != nil {
			t.Error(err)
		}
		// There may be very many tenants, one after another.
		p.SetTerms(func(string) admission.Terms { return admission.Terms{BytesPerSecond: 1e6} })
		for i := range 10_000 {
			p.Served(fmt.Sprint(i), 1)
			time.Sleep(time.Microsecond)
		}
		if n := p.Buckets(); n > 128 {
			t.Errorf("%d buckets are kept", n)
		}
	})
}
