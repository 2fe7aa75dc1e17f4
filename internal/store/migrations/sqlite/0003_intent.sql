-- +goose Up
-- The cause for which the host decided to end a command, '' for none.
alter table commands add column intent text not null default '';

-- +goose Down
alter table commands drop column intent;
