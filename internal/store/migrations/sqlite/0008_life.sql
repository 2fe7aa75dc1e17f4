-- +goose Up
-- Whether a sandbox is open, whether it sleeps, and what its clocks count from. One
-- of an earlier schema is open while it has an environment.
alter table sandboxes add column open integer not null default 0;
alter table sandboxes add column asleep integer not null default 0;
alter table sandboxes add column life_json text not null default '';
update sandboxes set open = 1 where state in ('starting', 'running', 'stopping');

create table documents (
    name text primary key,
    body blob not null
);

-- +goose Down
drop table documents;
alter table sandboxes drop column life_json;
alter table sandboxes drop column asleep;
alter table sandboxes drop column open;
