package bucket_test

import (
	"log/slog"
	"testing"
	"time"

	"bowstring/fetch/store"
	"bowstring/fetch/store/bucket"
	"bowstring/internal/storetest"
)

// options are those of a store in a test: its processes say that they are there more often than it would be sensible to pay for.
func options() bucket.Options {
	return bucket.Options{Logger: slog.New(slog.DiscardHandler), Renew: 100 * time.Millisecond, Lapse: 2 * time.Second}
}

// fresh makes a store under a URL, and opens it as often as asked.
func fresh(t testing.TB, url string) storetest.Opener {
	t.Helper()
	if _, err := bucket.Init(t.Context(), url, bucket.InitOptions{Options: options()}); err != nil {
		t.Fatal(err)
	}
	return func() (store.Store, error) { return bucket.Open(t.Context(), url, options()) }
}

// TestConformanceDirectory: a store in a directory that is taken for a bucket is a store.
func TestConformanceDirectory(t *testing.T) {
	storetest.Run(t, func(t testing.TB) storetest.Opener { return fresh(t, "file://"+t.TempDir()) })
}
