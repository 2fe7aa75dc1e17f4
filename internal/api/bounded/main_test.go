package bounded

import (
	"testing"

	"sandboxd/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }
