package object_test

import (
	"testing"

	"bowstring/internal/leaktest"
)

func runTests(m *testing.M) { leaktest.Main(m) }
