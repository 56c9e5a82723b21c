//go:build cassandra

package cql

import (
	"testing"

	"bowstring/fetch/store"
	"bowstring/internal/cassandratest"
	"bowstring/internal/storetest"
)

func TestConformance(t *testing.T) {
	node := cassandratest.Shared(t)
	storetest.Run(t, func(t testing.TB) storetest.Opener {
		uri := node.URI(newKeyspace(t), "conns=2")
		if err := Init(t.Context(), uri, InitOptions{Replication: one, Logger: quiet}); err != nil {
			t.Fatal(err)
		}
		return func() (store.Store, error) { return Open(t.Context(), uri, Options{Logger: quiet}) }
	})
}
