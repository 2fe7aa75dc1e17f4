-- +goose Up
-- Times are unix microseconds, 0 for none. Columns named *_json hold what is
-- never asked for by its parts; '' stands for nothing.
create table sandboxes (
    seq         integer primary key autoincrement,
    id          text    not null unique,
    key         text    not null,
    state       text    not null,
    generation  integer not null,
    driver      text    not null,
    runtime     text    not null,
    uid         integer not null,
    created_at  integer not null,
    nonce       text    not null,
    handle      blob    not null,
    limits_json text    not null,
    labels_json text    not null,
    env_json    text    not null,
    ending_json text    not null
);
-- A key has one life at a time, and a uid one owner until its files are gone.
create unique index sandboxes_living_key on sandboxes (key) where state not in ('deleting', 'deleted');
create unique index sandboxes_used_uid on sandboxes (uid) where state <> 'deleted';
create index sandboxes_listed on sandboxes (seq) where state <> 'deleted';

create table commands (
    seq         integer primary key autoincrement,
    sandbox_id  text    not null references sandboxes (id),
    id          text    not null,
    generation  integer not null,
    started_at  integer not null,
    tty         integer not null,
    shell       text    not null,
    argv_json   text    not null,
    spec_json   text    not null,
    end_offset  integer not null,
    ending_json text    not null,
    unique (sandbox_id, id)
);

-- +goose Down
drop table commands;
drop table sandboxes;
