-- +goose Up
alter table sandboxes add column image text not null default '';
alter table sandboxes add column oci_runtime text not null default '';

-- +goose Down
alter table sandboxes drop column oci_runtime;
alter table sandboxes drop column image;
