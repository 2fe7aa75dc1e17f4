package store

import (
	"bytes"
	"context"
	"encoding/json"
	"sync"

	"sandboxd"
)

// memory is a Store that lasts as long as the process.
type memory struct {
	mu        sync.Mutex
	closed    bool
	sandboxes []sandboxd.SandboxRecord            // as they were created
	commands  map[string][]sandboxd.CommandRecord // by sandbox, as they were created
	sessions  []sandboxd.SessionRecord            // as they were created
	documents map[string][]byte
}

// NewMemory makes an empty Store that lasts as long as the process. It
// answers as the one of OpenSQLite does.
func NewMemory() Store {
	return &memory{commands: map[string][]sandboxd.CommandRecord{}, documents: map[string][]byte{}}
}

// copied is v without anything shared, in the form that a database would give back.
func copied[T any](v T) T {
	text, err := json.Marshal(v)
	if err != nil {
		panic("store: a record is no JSON: " + err.Error())
	}
	var c T
	if err := json.Unmarshal(text, &c); err != nil {
		panic("store: a record is no JSON: " + err.Error())
	}
	return c
}

// enter locks m for one method; leave unlocks it.
func (m *memory) enter(ctx context.Context) (leave func(), err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return nil, errClosed()
	}
	return m.mu.Unlock, nil
}

func (m *memory) Create(ctx context.Context, rec sandboxd.SandboxRecord, pool sandboxd.UIDPool) (sandboxd.SandboxRecord, bool, error) {
	none := sandboxd.SandboxRecord{}
	if err := checkNew(rec); err != nil {
		return none, false, err
	}
	leave, err := m.enter(ctx)
	if err != nil {
		return none, false, err
	}
	defer leave()
	used, known := map[uint32]bool{}, false
	for _, old := range m.sandboxes {
		known = known || old.ID == rec.ID
		if old.Key == rec.Key && living(old.State) {
			return copied(old), false, nil
		}
		if old.State != sandboxd.StateDeleted {
			used[old.UID] = true
		}
	}
	if known {
		return none, false, errIDUsed(rec.ID)
	}
	for uid := uint64(pool.First); uid <= uint64(pool.Last); uid++ {
		if !used[uint32(uid)] || pool.Shared {
			rec.UID = uint32(uid)
			m.sandboxes = append(m.sandboxes, copied(normal(rec)))
			return copied(normal(rec)), true, nil
		}
	}
	return none, false, errPoolEmpty(pool)
}

func (m *memory) find(match func(*sandboxd.SandboxRecord) bool) *sandboxd.SandboxRecord {
	for i := range m.sandboxes {
		if match(&m.sandboxes[i]) {
			return &m.sandboxes[i]
		}
	}
	return nil
}

func (m *memory) byID(id string) *sandboxd.SandboxRecord {
	return m.find(func(r *sandboxd.SandboxRecord) bool { return r.ID == id })
}

func (m *memory) Get(ctx context.Context, id string) (sandboxd.SandboxRecord, error) {
	leave, err := m.enter(ctx)
	if err != nil {
		return sandboxd.SandboxRecord{}, err
	}
	defer leave()
	if rec := m.byID(id); rec != nil {
		return copied(*rec), nil
	}
	return sandboxd.SandboxRecord{}, errNoSandbox(id)
}

func (m *memory) ByKey(ctx context.Context, key string) (sandboxd.SandboxRecord, error) {
	leave, err := m.enter(ctx)
	if err != nil {
		return sandboxd.SandboxRecord{}, err
	}
	defer leave()
	rec := m.find(func(r *sandboxd.SandboxRecord) bool { return r.Key == key && living(r.State) })
	if rec == nil {
		return sandboxd.SandboxRecord{}, errNoSandbox(key)
	}
	return copied(*rec), nil
}

func (m *memory) List(ctx context.Context) ([]sandboxd.SandboxRecord, error) {
	leave, err := m.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	list := []sandboxd.SandboxRecord{}
	for _, rec := range m.sandboxes {
		if rec.State != sandboxd.StateDeleted {
			list = append(list, copied(rec))
		}
	}
	return list, nil
}

func (m *memory) Update(ctx context.Context, id string, fn func(*sandboxd.SandboxRecord) error) (sandboxd.SandboxRecord, error) {
	none := sandboxd.SandboxRecord{}
	leave, err := m.enter(ctx)
	if err != nil {
		return none, err
	}
	defer leave()
	rec := m.byID(id)
	if rec == nil {
		return none, errNoSandbox(id)
	}
	changed := copied(*rec)
	if err := fn(&changed); err != nil {
		return none, err
	}
	if err := checkChange(*rec, changed); err != nil {
		return none, err
	}
	*rec = copied(normal(changed))
	return copied(*rec), nil
}

func (m *memory) command(sandbox, command string) *sandboxd.CommandRecord {
	list := m.commands[sandbox]
	for i := range list {
		if list[i].ID == command {
			return &list[i]
		}
	}
	return nil
}

func (m *memory) CreateCommand(ctx context.Context, rec sandboxd.CommandRecord) (sandboxd.CommandRecord, bool, error) {
	none := sandboxd.CommandRecord{}
	leave, err := m.enter(ctx)
	if err != nil {
		return none, false, err
	}
	defer leave()
	if m.byID(rec.SandboxID) == nil {
		return none, false, errNoSandbox(rec.SandboxID)
	}
	if old := m.command(rec.SandboxID, rec.ID); old != nil {
		return copied(*old), false, nil
	}
	rec = normalCommand(rec)
	m.commands[rec.SandboxID] = append(m.commands[rec.SandboxID], copied(rec))
	return copied(rec), true, nil
}

func (m *memory) GetCommand(ctx context.Context, sandbox, command string) (sandboxd.CommandRecord, error) {
	leave, err := m.enter(ctx)
	if err != nil {
		return sandboxd.CommandRecord{}, err
	}
	defer leave()
	if rec := m.command(sandbox, command); rec != nil {
		return copied(*rec), nil
	}
	return sandboxd.CommandRecord{}, errNoCommand(command)
}

func (m *memory) ListCommands(ctx context.Context, sandbox string) ([]sandboxd.CommandRecord, error) {
	leave, err := m.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	list := []sandboxd.CommandRecord{}
	for _, rec := range m.commands[sandbox] {
		list = append(list, copied(rec))
	}
	return list, nil
}

func (m *memory) IntendCommand(ctx context.Context, sandbox, command string, cause sandboxd.Cause) error {
	leave, err := m.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	rec := m.command(sandbox, command)
	if rec == nil {
		return errNoCommand(command)
	}
	if rec.Intent == "" && rec.Ending == nil {
		rec.Intent = cause
	}
	return nil
}

func (m *memory) EndCommand(ctx context.Context, sandbox, command string, offset int64, ending sandboxd.Ending) (bool, error) {
	leave, err := m.enter(ctx)
	if err != nil {
		return false, err
	}
	defer leave()
	rec := m.command(sandbox, command)
	if rec == nil {
		return false, errNoCommand(command)
	}
	if rec.Ending != nil {
		return false, nil
	}
	ending = copied(ending)
	rec.Offset, rec.Ending = offset, &ending
	return true, nil
}

func (m *memory) DeleteCommands(ctx context.Context, sandbox string) error {
	leave, err := m.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	delete(m.commands, sandbox)
	return nil
}

func (m *memory) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	return nil
}

func (m *memory) Document(ctx context.Context, name string) ([]byte, error) {
	leave, err := m.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	return bytes.Clone(m.documents[name]), nil
}

func (m *memory) PutDocument(ctx context.Context, name string, text []byte) error {
	leave, err := m.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	if m.documents[name] = bytes.Clone(text); len(text) == 0 {
		delete(m.documents, name)
	}
	return nil
}
