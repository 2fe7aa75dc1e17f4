-- +goose Up
alter table sandboxes add column network_json text not null default '{"mode":"none"}';

-- +goose Down
alter table sandboxes drop column network_json;
