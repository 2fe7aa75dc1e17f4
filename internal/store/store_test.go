package store

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"sandboxd"
	"sandboxd/internal/leaktest"
	"sandboxd/internal/store/storetest"
)

// writeUntilKilled names the database that a child process of this test writes
// to, until it is killed.
const writeUntilKilled = "SANDBOXD_TEST_STORE"

func TestMain(m *testing.M) {
	if path := os.Getenv(writeUntilKilled); path != "" {
		fmt.Fprintln(os.Stderr, acknowledge(path))
		os.Exit(1)
	}
	leaktest.Main(m)
}

var pool = sandboxd.UIDPool{First: 1000, Last: 1_000_000}

func open(t testing.TB, path string) sandboxd.HostStore {
	t.Helper()
	s, err := OpenSQLite(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestSQLite(t *testing.T) {
	storetest.Run(t, func(t *testing.T) sandboxd.HostStore { return open(t, filepath.Join(t.TempDir(), "host.db")) })
}

func TestSessions(t *testing.T) {
	storetest.RunSessions(t, func(t *testing.T) storetest.SessionStore {
		s, err := OpenSQLite(t.Context(), filepath.Join(t.TempDir(), "host.db"))
		if err != nil {
			t.Fatal(err)
		}
		return s
	})
	storetest.RunSessions(t, func(*testing.T) storetest.SessionStore { return NewMemory() })
}

func TestMemory(t *testing.T) {
	storetest.Run(t, func(*testing.T) sandboxd.HostStore { return NewMemory() })
}

func TestSQLiteAgainstMemory(t *testing.T) {
	dir, n := t.TempDir(), 0
	storetest.Model(t, func(rt *rapid.T) (sandboxd.HostStore, sandboxd.HostStore) {
		n++
		s, err := OpenSQLite(t.Context(), filepath.Join(dir, fmt.Sprint(n)))
		if err != nil {
			rt.Fatal(err)
		}
		return s, NewMemory()
	})
}

func TestSQLiteKeepsEverythingOverAReopen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a path with ? and #.db")
	ctx := t.Context()
	s := open(t, path)
	for i := range 10 {
		rec, _, err := s.Create(ctx, storetest.NewRecord(fmt.Sprint("k", i)), pool)
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := s.CreateCommand(ctx, storetest.NewCommand(rec.ID, "c")); err != nil {
			t.Fatal(err)
		}
		if i%2 == 0 {
			if _, err := s.EndCommand(ctx, rec.ID, "c", 7, sandboxd.Ending{Cause: sandboxd.CauseExit}); err != nil {
				t.Fatal(err)
			}
		}
	}
	all := func() (recs []sandboxd.SandboxRecord, cmds []sandboxd.CommandRecord) {
		recs, err := s.List(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, rec := range recs {
			list, err := s.ListCommands(ctx, rec.ID)
			if err != nil {
				t.Fatal(err)
			}
			cmds = append(cmds, list...)
		}
		return recs, cmds
	}
	recs, cmds := all()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode() != 0o600 {
		t.Fatalf("the database: %v %v", info, err)
	}
	if left, _ := filepath.Glob(filepath.Dir(path) + "/*-wal"); len(left) > 0 {
		t.Fatalf("a closed database left %v", left)
	}
	s = open(t, path)
	defer s.Close()
	againRecs, againCmds := all()
	if diff := cmp.Diff(recs, againRecs) + cmp.Diff(cmds, againCmds); diff != "" || len(recs) != 10 {
		t.Fatalf("after the reopen (-before +after):\n%s", diff)
	}
	rec, created, err := s.Create(ctx, storetest.NewRecord("fresh"), pool)
	if err != nil || !created {
		t.Fatal(err)
	}
	for _, old := range recs {
		if old.UID == rec.UID {
			t.Fatalf("uid %d was given again", rec.UID)
		}
	}
}

// TestARecordOfAnEarlierSchemaHasDefaults opens a database as it was before sandboxes
// could have a network, a tenant, a face or a root that takes writes.
func TestARecordOfAnEarlierSchemaHasDefaults(t *testing.T) {
	path := filepath.Join(t.TempDir(), "host.db")
	s := open(t, path)
	rec := storetest.NewRecord("old")
	rec.Network = sandboxd.Network{Mode: sandboxd.NetworkProxy, Allow: []string{"*"}}
	rec.Root, rec.Tenant, rec.Face = sandboxd.RootWritable, "acme", sandboxd.FaceSessions
	rec, _, err := s.Create(t.Context(), rec, pool)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	db, err := sql.Open("sqlite", path)
	for _, text := range []string{`alter table sandboxes drop column network_json`, `alter table sandboxes drop column root`,
		`alter table sandboxes drop column tenant`, `alter table sandboxes drop column face`, `alter table sandboxes drop column open`,
		`alter table sandboxes drop column asleep`, `alter table sandboxes drop column life_json`, `alter table sandboxes drop column asked_json`, `drop table documents`, `drop table sessions`,
		`update sandboxes set state = 'running'`, `delete from goose_db_version where version_id >= 5`} {
		if err == nil {
			_, err = db.Exec(text)
		}
	}
	if err = errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	s = open(t, path)
	defer s.Close()
	got, err := s.Get(t.Context(), rec.ID)
	if err != nil {
		t.Fatal(err)
	}
	want := rec
	want.State, want.Open, want.Asked = sandboxd.StateRunning, true, rec.Limits
	want.Network, want.Root, want.Tenant, want.Face = sandboxd.Network{Mode: sandboxd.NetworkNone}, sandboxd.RootReadonly, "", sandboxd.FaceNative
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatal(diff)
	}
}

func TestSQLiteRefusesANewerSchema(t *testing.T) {
	path := filepath.Join(t.TempDir(), "host.db")
	if err := open(t, path).Close(); err != nil {
		t.Fatal(err)
	}
	db, err := sql.Open("sqlite", path)
	if err == nil {
		_, err = db.Exec(`insert into goose_db_version (version_id, is_applied) values (99, 1)`)
	}
	if err = errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	_, err = OpenSQLite(t.Context(), path)
	if sandboxd.ClassOf(err) != sandboxd.ClassUnsupported || !strings.Contains(err.Error(), "schema version 99") {
		t.Fatalf("error %v", err)
	}
}

func TestSQLiteRefusesWhatIsNoDatabase(t *testing.T) {
	path := filepath.Join(t.TempDir(), "host.db")
	if err := os.WriteFile(path, []byte(strings.Repeat("no database ", 1000)), 0o600); err != nil {
		t.Fatal(err)
	}
	if s, err := OpenSQLite(t.Context(), path); err == nil {
		s.Close()
		t.Fatal("it was opened")
	}
}

// acknowledge writes records and says the name of each one that is stored.
func acknowledge(path string) error {
	ctx := context.Background()
	s, err := OpenSQLite(ctx, path)
	if err != nil {
		return err
	}
	fmt.Println("ready")
	for {
		rec, _, err := s.Create(ctx, storetest.NewRecord(sandboxd.NewID()), pool)
		if err != nil {
			return err
		}
		fmt.Println("created", rec.ID, rec.UID)
		if _, err = s.Update(ctx, rec.ID, func(r *sandboxd.SandboxRecord) error { r.State = sandboxd.StateStarting; return nil }); err != nil {
			return err
		}
		fmt.Println("updated", rec.ID, rec.UID)
		if _, _, err = s.CreateCommand(ctx, storetest.NewCommand(rec.ID, "c")); err != nil {
			return err
		}
		fmt.Println("started", rec.ID, rec.UID)
		if _, err = s.EndCommand(ctx, rec.ID, "c", 1, sandboxd.Ending{Cause: sandboxd.CauseExit}); err != nil {
			return err
		}
		fmt.Println("ended", rec.ID, rec.UID)
	}
}

func TestSQLiteSurvivesKill9(t *testing.T) {
	path := filepath.Join(t.TempDir(), "host.db")
	said := map[string]string{} // id and uid to the last thing said of them
	for round := range 20 {
		child := exec.Command(os.Args[0])
		child.Env = append(os.Environ(), writeUntilKilled+"="+path)
		child.Stderr = os.Stderr
		out, err := child.StdoutPipe()
		if err == nil {
			err = child.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			word, who, _ := strings.Cut(lines.Text(), " ")
			if word == "ready" {
				time.AfterFunc(time.Duration(rand.IntN(20_000))*time.Microsecond, func() { child.Process.Kill() })
				continue
			}
			said[who] = word
		}
		child.Wait()

		s := open(t, path)
		for who, word := range said {
			id, uid, _ := strings.Cut(who, " ")
			rec, err := s.Get(t.Context(), id)
			if err != nil || fmt.Sprint(rec.UID) != uid {
				t.Fatalf("round %d: %s %s was lost: uid %d, %v", round, word, who, rec.UID, err)
			}
			if word != "created" && rec.State != sandboxd.StateStarting {
				t.Fatalf("round %d: the update of %s was lost", round, who)
			}
			cmd, err := s.GetCommand(t.Context(), id, "c")
			if (word == "started" || word == "ended") && err != nil || word == "ended" && cmd.Ending == nil {
				t.Fatalf("round %d: the command of %s was lost: %v", round, who, err)
			}
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if len(said) < 20 {
		t.Fatalf("only %d records in 20 rounds", len(said))
	}
}
