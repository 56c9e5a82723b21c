//go:build objects

package object_test

import (
	"testing"

	"bowstring/fetch/object"
	"bowstring/internal/objecttest"
)

// realServer runs the suite against a server that is not ours.
func realServer(t *testing.T, r objecttest.Real, traits objecttest.Traits) {
	objecttest.Run(t, func(t *testing.T) object.Bucket { return open(t, r.URL, object.Options{Keys: &r.Keys}) }, traits)
}

func TestRealVersity(t *testing.T) {
	realServer(t, objecttest.Versity(t), objecttest.Traits{Files: true})
}

func TestRealGCS(t *testing.T) {
	realServer(t, objecttest.FakeGCS(t), objecttest.Traits{})
}

func TestRealAzure(t *testing.T) {
	realServer(t, objecttest.Azurite(t), objecttest.Traits{Slow: true})
}
