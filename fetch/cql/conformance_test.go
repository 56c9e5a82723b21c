//go:build cassandra

package cql

import (
	"testing"

	"bowstring/fetch"
	"bowstring/fetch/cql/cassandratest"
	"bowstring/fetch/storetest"
)

func TestConformance(t *testing.T) {
	node := cassandratest.Shared(t)
	storetest.Run(t, func(t testing.TB) storetest.Opener {
		uri := node.URI(newKeyspace(t), "grace=0s&conns=2")
		return func() (fetch.Store, error) { return Open(t.Context(), uri, Options{Create: true, Logger: quiet}) }
	})
}
