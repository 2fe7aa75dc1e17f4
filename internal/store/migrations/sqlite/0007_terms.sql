-- +goose Up
alter table sandboxes add column root text not null default 'readonly';
alter table sandboxes add column tenant text not null default '';
alter table sandboxes add column face text not null default 'native';

-- +goose Down
alter table sandboxes drop column face;
alter table sandboxes drop column tenant;
alter table sandboxes drop column root;
