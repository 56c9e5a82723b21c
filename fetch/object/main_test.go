package object_test

import (
	"testing"

	"go.uber.org/goleak"
)

func runTests(m *testing.M) { goleak.VerifyTestMain(m) }
