package local

import (
	"testing"

	"go.uber.org/goleak"

	"bowstring/fetch"
	"bowstring/fetch/storetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestConformance(t *testing.T) {
	for name, size := range map[string]int64{"one segment": 0, "many segments": 256 << 10} {
		t.Run(name, func(t *testing.T) {
			storetest.Run(t, func(t testing.TB) storetest.Opener {
				dir := t.TempDir()
				return func() (fetch.Store, error) { return Open(dir, Options{SegmentBytes: size}) }
			})
		})
	}
}
