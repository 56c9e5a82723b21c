package parquet

import (
	"testing"

	"bowstring/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }
