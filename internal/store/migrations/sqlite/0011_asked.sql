-- +goose Up
-- The limits that a sandbox's request named. Of an earlier schema nobody knows, so all
-- that it has stay its own.
alter table sandboxes add column asked_json text not null default '';
update sandboxes set asked_json = limits_json;

-- +goose Down
alter table sandboxes drop column asked_json;
