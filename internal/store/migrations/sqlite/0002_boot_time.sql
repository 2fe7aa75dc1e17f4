-- +goose Up
-- When a command started by the clock that nobody sets: the boot of the machine,
-- '' for none, and the microseconds since.
alter table commands add column started_boot text not null default '';
alter table commands add column started_since integer not null default 0;

-- +goose Down
alter table commands drop column started_boot;
alter table commands drop column started_since;
