package fake_test

import (
	"testing"

	"sandboxd"
	"sandboxd/internal/driver/drivertest"
	"sandboxd/internal/driver/fake"
)

func TestSuite(t *testing.T) {
	drivertest.Run(t, func(t *testing.T) drivertest.Harness {
		world := fake.NewWorld(fake.Config{})
		t.Cleanup(world.Close)
		return drivertest.Harness{
			Open: func(testing.TB) sandboxd.Driver { return fake.New(world) },
			Spec: func(testing.TB) sandboxd.EnvironmentSpec {
				return sandboxd.EnvironmentSpec{ID: sandboxd.NewID(), Generation: 1, Hostname: "box", Limits: sandboxd.DefaultLimits()}
			},
			True:  []string{"true"},
			Echo:  func(text string) []string { return []string{"echo", text} },
			Sleep: []string{"sleep", "1000"},
			End: func(t testing.TB, _ sandboxd.Driver, id string) {
				if !world.Kill(id) {
					t.Fatal("there is nothing to end")
				}
			},
		}
	})
}
