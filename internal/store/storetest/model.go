package storetest

import (
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"sandboxd"
)

// Model runs random operations against two stores and compares every answer.
// Which uid of the pool a store gives is its own affair. open answers two empty
// stores.
func Model(t *testing.T, open func(t *rapid.T) (tested, model sandboxd.HostStore)) {
	rapid.Check(t, func(rt *rapid.T) {
		tested, model := open(rt)
		defer func() {
			if err := errors.Join(tested.Close(), model.Close()); err != nil {
				rt.Fatal(err)
			}
		}()
		ctx := t.Context()
		pool := sandboxd.UIDPool{First: 100, Last: 104}
		ids := []string{"unknown"}
		id := func(rt *rapid.T) string { return rapid.SampledFrom(ids).Draw(rt, "id") }
		key := func(rt *rapid.T) string { return rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(rt, "key") }
		command := func(rt *rapid.T) string { return rapid.SampledFrom([]string{"x", "y"}).Draw(rt, "command") }
		equal := func(got, want any, gotErr, wantErr error) {
			if (gotErr == nil) != (wantErr == nil) || gotErr != nil && sandboxd.ClassOf(gotErr) != sandboxd.ClassOf(wantErr) {
				rt.Fatalf("error %v, want %v", gotErr, wantErr)
			}
			uids := cmp.FilterPath(func(p cmp.Path) bool { return p.Last().String() == ".UID" }, cmp.Ignore())
			if diff := cmp.Diff(want, got, uids); diff != "" {
				rt.Fatalf("differs (-model +tested):\n%s", diff)
			}
		}
		rt.Repeat(map[string]func(*rapid.T){
			"": func(rt *rapid.T) {
				got, gotErr := tested.List(ctx)
				want, wantErr := model.List(ctx)
				equal(got, want, gotErr, wantErr)
				owners := map[uint32]string{}
				for _, rec := range got {
					if other, taken := owners[rec.UID]; taken || rec.UID < pool.First || rec.UID > pool.Last {
						rt.Fatalf("uid %d of %s, also of %q", rec.UID, rec.ID, other)
					}
					owners[rec.UID] = rec.ID
				}
			},
			"create": func(rt *rapid.T) {
				rec := NewRecord(key(rt))
				if rapid.IntRange(0, 9).Draw(rt, "known") == 0 {
					rec.ID = id(rt)
				}
				got, gotNew, gotErr := tested.Create(ctx, rec, pool)
				want, wantNew, wantErr := model.Create(ctx, rec, pool)
				equal(got, want, gotErr, wantErr)
				if gotNew != wantNew {
					rt.Fatalf("created %v, want %v", gotNew, wantNew)
				}
				if gotNew {
					ids = append(ids, rec.ID)
				}
			},
			"update": func(rt *rapid.T) {
				target, generation := id(rt), rapid.Int64().Draw(rt, "generation")
				states := append(sandboxd.States(), "")
				state := rapid.SampledFrom(states).Draw(rt, "state")
				fails := rapid.IntRange(0, 9).Draw(rt, "fails") == 0
				change := func(r *sandboxd.SandboxRecord) error {
					r.State, r.Generation, r.Nonce = state, generation, fmt.Sprint(generation)
					r.Labels = map[string]string{"generation": r.Nonce}
					r.LastEnding = &sandboxd.Ending{Cause: sandboxd.CauseExit}
					if fails {
						return sandboxd.Errorf(sandboxd.ClassBusy, "fails")
					}
					return nil
				}
				got, gotErr := tested.Update(ctx, target, change)
				want, wantErr := model.Update(ctx, target, change)
				equal(got, want, gotErr, wantErr)
			},
			"get": func(rt *rapid.T) {
				target, name := id(rt), key(rt)
				got, gotErr := tested.Get(ctx, target)
				want, wantErr := model.Get(ctx, target)
				equal(got, want, gotErr, wantErr)
				got, gotErr = tested.ByKey(ctx, name)
				want, wantErr = model.ByKey(ctx, name)
				equal(got, want, gotErr, wantErr)
			},
			"start a command": func(rt *rapid.T) {
				rec := NewCommand(id(rt), command(rt))
				got, gotNew, gotErr := tested.CreateCommand(ctx, rec)
				want, wantNew, wantErr := model.CreateCommand(ctx, rec)
				equal(got, want, gotErr, wantErr)
				if gotNew != wantNew {
					rt.Fatalf("created %v, want %v", gotNew, wantNew)
				}
			},
			"intend a command's end": func(rt *rapid.T) {
				target, name := id(rt), command(rt)
				cause := rapid.SampledFrom(sandboxd.Causes()).Draw(rt, "cause")
				gotErr := tested.IntendCommand(ctx, target, name, cause)
				wantErr := model.IntendCommand(ctx, target, name, cause)
				equal(nil, nil, gotErr, wantErr)
			},
			"end a command": func(rt *rapid.T) {
				target, name := id(rt), command(rt)
				ending := sandboxd.Ending{Cause: rapid.SampledFrom(sandboxd.Causes()).Draw(rt, "cause")}
				got, gotErr := tested.EndCommand(ctx, target, name, 5, ending)
				want, wantErr := model.EndCommand(ctx, target, name, 5, ending)
				equal(got, want, gotErr, wantErr)
				// The record with it is compared by the next listing.
			},
			"list commands": func(rt *rapid.T) {
				target, name := id(rt), command(rt)
				got, gotErr := tested.ListCommands(ctx, target)
				want, wantErr := model.ListCommands(ctx, target)
				equal(got, want, gotErr, wantErr)
				one, gotErr := tested.GetCommand(ctx, target, name)
				other, wantErr := model.GetCommand(ctx, target, name)
				equal(one, other, gotErr, wantErr)
			},
			"delete commands": func(rt *rapid.T) {
				target := id(rt)
				equal(nil, nil, tested.DeleteCommands(ctx, target), model.DeleteCommands(ctx, target))
			},
		})
	})
}
