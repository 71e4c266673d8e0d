// Drives the AWS SDK for JavaScript by lines of JSON; see tests/s3compat/clients/driven.py. Modules come from MODULES.
import { createReadStream, readFileSync } from 'node:fs';
import { writeFile } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { createInterface } from 'node:readline';

const require = createRequire(`${process.argv[2]}/package.json`);
const s3 = require('@aws-sdk/client-s3');
const { Upload } = require('@aws-sdk/lib-storage');
const { getSignedUrl } = require('@aws-sdk/s3-request-presigner');

const part = Number(process.env.PART);
const client = new s3.S3Client({
  endpoint: process.env.ENDPOINT,
  region: process.env.REGION,
  forcePathStyle: true,
  maxAttempts: 1,
  credentials: { accessKeyId: process.env.KEY, secretAccessKey: process.env.SECRET },
});

async function read(request) {
  const answer = await client.send(new s3.GetObjectCommand(request));
  return answer.Body.transformToByteArray();
}

async function download(request) {
  const size = (await client.send(new s3.HeadObjectCommand(request))).ContentLength;
  const pieces = [];
  for (let at = 0; at < size; at += part) {
    pieces.push(read({ ...request, Range: `bytes=${at}-${Math.min(at + part, size) - 1}` }));
  }
  return Buffer.concat(await Promise.all(pieces));
}

async function list(request) {
  const keys = [];
  for await (const page of s3.paginateListObjectsV2({ client, pageSize: 1 }, request)) {
    keys.push(...(page.Contents ?? []).map((item) => item.Key));
  }
  return keys;
}

const operations = {
  version: async () => require('@aws-sdk/client-s3/package.json').version,
  put: (asked, target) => client.send(new s3.PutObjectCommand({ ...target, Body: readFileSync(asked.path) })),
  get: async (asked, target) => writeFile(asked.path, await read(target)),
  head: async (asked, target) => (await client.send(new s3.HeadObjectCommand(target))).ContentLength,
  read_range: async (asked, target) =>
    writeFile(asked.path, await read({ ...target, Range: `bytes=${asked.start}-${asked.stop - 1}` })),
  list_keys: (asked) => list({ Bucket: asked.bucket, Prefix: asked.prefix }),
  upload: (asked, target) =>
    new Upload({ client, partSize: part, params: { ...target, Body: createReadStream(asked.path) } }).done(),
  download: async (asked, target) => writeFile(asked.path, await download(target)),
  presign_get: (asked, target) => getSignedUrl(client, new s3.GetObjectCommand(target), { expiresIn: 300 }),
  presign_put: (asked, target) => getSignedUrl(client, new s3.PutObjectCommand(target), { expiresIn: 300 }),
  copy: (asked) =>
    client.send(
      new s3.CopyObjectCommand({ Bucket: asked.bucket, Key: asked.target, CopySource: `${asked.bucket}/${asked.source}` }),
    ),
  delete: (asked, target) => client.send(new s3.DeleteObjectCommand(target)),
  delete_many: (asked) =>
    client.send(
      new s3.DeleteObjectsCommand({ Bucket: asked.bucket, Delete: { Objects: asked.keys.map((Key) => ({ Key })) } }),
    ),
};

for await (const line of createInterface({ input: process.stdin })) {
  const asked = JSON.parse(line);
  let answer;
  try {
    const value = await operations[asked.operation](asked, { Bucket: asked.bucket, Key: asked.key });
    answer = { value: ['string', 'number'].includes(typeof value) || Array.isArray(value) ? value : null };
  } catch (error) {
    answer = { error: `${error.name}: ${error.message}` };
  }
  process.stdout.write(`${JSON.stringify(answer)}\n`);
}
