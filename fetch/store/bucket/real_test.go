//go:build objects

package bucket

import (
	"strings"
	"testing"

	"bowstring/fetch/object"
	"bowstring/fetch/store"
	"bowstring/internal/objecttest"
	"bowstring/internal/storetest"
)

// conformsReal runs the suite at a real server, once that has proven that it keeps conditions.
func conformsReal(t *testing.T, real objecttest.Real) {
	place, settings, has := strings.Cut(real.URL, "?")
	if has {
		settings = "?" + settings
	}
	opts := testOptions()
	opts.Bucket = object.Options{Keys: &real.Keys}
	n := 0
	storetest.Run(t, func(t testing.TB) storetest.Opener {
		n++
		url := place + "/store-" + string(rune('a'+n/26)) + string(rune('a'+n%26)) + settings
		if n == 1 {
			if _, err := Init(t.Context(), url, InitOptions{Options: opts}); err != nil {
				t.Fatal(err)
			}
		} else {
			foundWith(t, url, opts)
		}
		return func() (store.Store, error) { return Open(t.Context(), url, opts) }
	})
}

func TestRealVersity(t *testing.T) { conformsReal(t, objecttest.Versity(t)) }

func TestRealGCS(t *testing.T) { conformsReal(t, objecttest.FakeGCS(t)) }

func TestRealAzure(t *testing.T) { conformsReal(t, objecttest.Azurite(t)) }
