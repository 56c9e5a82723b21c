//go:build cassandra

package cql

import (
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"bowstring/fetch/store"
	"bowstring/internal/cassandratest"
	"bowstring/internal/delay"
)

// BenchmarkCollect collects a store that is 150 ms away and has very many snapshots, each
// with a manifest of its own, while one in a hundred has been dropped.
// SNAPSHOTS is how many there are.
func BenchmarkCollect(b *testing.B) {
	const (
		rtt         = 150 * time.Millisecond
		perDataset  = 100
		atOnce      = 16
		blobsOfEach = 2
	)
	snapshots := 10_000
	if text := os.Getenv("SNAPSHOTS"); text != "" {
		var err error
		if snapshots, err = strconv.Atoi(text); err != nil {
			b.Fatal(err)
		}
	}
	keyspace := newKeyspace(b)
	near := openStore(b, keyspace)
	makers, ctx := errgroup.WithContext(b.Context())
	makers.SetLimit(atOnce)
	for at := 0; at < snapshots; at += perDataset {
		makers.Go(func() error {
			name := fmt.Sprint("d", at)
			for n := range int64(min(perDataset, snapshots-at)) {
				if _, err := importInto(ctx, near, name, n,
					blobs(fmt.Sprint(name, "/", n), blobsOfEach, 100)); err != nil {
					return err
				}
			}
			return near.Drop(ctx, name, 1)
		})
	}
	if err := makers.Wait(); err != nil {
		b.Fatal(err)
	}
	for range b.N {
		link := delay.New(delay.Config{RTT: rtt})
		far, err := Open(b.Context(), cassandratest.Shared(b).URI(keyspace, ""), Options{Logger: quiet, Dialer: link})
		if err != nil {
			b.Fatal(err)
		}
		began := time.Now()
		report, err := far.GC(b.Context(), store.GCOptions{}, nil)
		b.ReportMetric(time.Since(began).Seconds(), "collect_s")
		b.ReportMetric(float64(report.LiveBlobs), "live")
		b.ReportMetric(float64(report.DeadBlobs), "dead")
		if err != nil || report.LiveBlobs == 0 {
			b.Errorf("%+v: %v", report, err)
		}
		if err := far.Close(); err != nil {
			b.Error(err)
		}
		link.Close()
	}
}
