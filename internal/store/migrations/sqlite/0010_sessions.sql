-- +goose Up
create table sessions (
	seq           integer primary key,
	id            text not null unique,
	life          text not null unique,
	sandbox_id    text not null,
	runtime       text not null,
	tenant        text not null,
	created_at    integer not null,
	last_activity integer not null,
	last_seq      integer not null
);

-- +goose Down
drop table sessions;
