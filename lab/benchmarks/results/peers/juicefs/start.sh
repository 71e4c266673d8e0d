# Metadata in Redis; --open-cache is what JuiceFS recommends for data that is only read, such as training data
# (juicefs.com/docs/community/guide/cache).
export MINIO_ROOT_USER="@ACCESS_KEY@" MINIO_ROOT_PASSWORD="@SECRET_KEY@"
exec "@PROGRAMS@/juicefs" gateway --no-banner --no-usage-report --log "@DIR@/gateway.log" --metrics "127.0.0.1:@FREE2@" \
  --cache-dir "@DIR@/cache" --cache-size 10240 --backup-meta 0 --read-only --keep-etag --attr-cache 3600 --entry-cache 3600 \
  --dir-entry-cache 3600 --open-cache 3600 "redis://127.0.0.1:@REDIS@/1" "127.0.0.1:@PORT@"
